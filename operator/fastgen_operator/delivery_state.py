"""Decides from observed objects how far a model is, and what becomes of its Job and claims."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from fastgen_api.delivery import DeliveryField, DeliveryState, ModelPhase
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.ailments import first_ailment
from fastgen_operator.delivery import (
    Delivered,
    Delivery,
    JobStep,
    Way,
    claim_name,
    foreign_claim_name,
    modes_of,
    not_started,
    remembered_models,
    way_of,
)
from fastgen_operator.delivery_children import claim_problem, job_marks
from fastgen_operator.delivery_report import number
from fastgen_operator.delivery_seen import (
    CLAIM,
    Seen,
    claim_of,
    condition,
    is_leaving,
    phase_of,
    seen_of,
)
from fastgen_operator.delivery_why import CLAIM_NOT_FOUND, why_failed, why_waiting
from fastgen_operator.delivery_words import claim_not_found, progress, told_percent
from fastgen_operator.fingerprint import DECLARED_ANNOTATION, TEMPLATE_ANNOTATION
from fastgen_operator.observed import ENDED, UNSCHEDULABLE, Observed, deployment_of
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Settings

CLAIM_LEAVING: Final = "ClaimTerminating"
LOOK_AGAIN: Final = timedelta(seconds=10)
"""The user's claims carry no label of ours: no watch tells about them."""
REPORT_WAIT: Final = timedelta(seconds=30)
"""From the end of a Job to the moment when its report is given up as lost."""


def delivery_of(
    owner: Owner,
    spec: Spec,
    settings: Settings,
    observed: Observed,
    previous: KubernetesObject,
    now: datetime,
) -> Delivery:
    """How far the spec's model is, and what is to be done about it.

    `observed` holds the user's own claim, too, where the spec names one. `previous` is the status
    before: from it comes the share that was told last.
    """
    held = deployment_of(observed, owner.name, Component.REPLICA)
    remembered = remembered_models(held)
    seen = seen_of(owner, spec, observed, remembered)
    match way_of(spec.model):
        case Way.IMAGE:
            found = not_started(owner.name, spec.model)
        case Way.CLAIM:
            found = _in_claim(owner, spec, observed)
        case _:
            found = _downloaded(owner, spec, settings, seen, remembered, previous, now)
    is_own = way_of(spec.model) is Way.CACHE and not foreign_claim_name(owner.name, spec.model)
    own_claim = seen.claim if is_own else None
    job = frozenset({("Job", seen.job_name)}) if found.job is JobStep.KEEP else frozenset()
    return replace(
        found,
        held=held,
        remembered=remembered,
        claim=own_claim,
        claim_problem=claim_problem(spec, own_claim),
        modes=modes_of(owner.name, spec.model, seen.claim),
        kept=_kept_claims(observed) | _named_claim(owner, spec) | job,
    )


def _in_claim(owner: Owner, spec: Spec, observed: Observed) -> Delivery:
    """A model that lies in a claim of the user's: there is nothing to do but to find it."""
    if claim_of(owner, spec, observed) is not None:
        return not_started(owner.name, spec.model)
    name = claim_name(owner.name, spec.model) or ""
    words = claim_not_found("spec.model.source", name, owner.namespace)
    return Delivery(None, ModelPhase.PENDING, CLAIM_NOT_FOUND, words, again=LOOK_AGAIN)


def _downloaded(
    owner: Owner,
    spec: Spec,
    settings: Settings,
    seen: Seen,
    remembered: Iterable[Delivered],
    previous: KubernetesObject,
    now: datetime,
) -> Delivery:
    """How far a model is that a Job brings or resolves."""
    waiting = replace(not_started(owner.name, spec.model), revision=seen.pinned)
    if seen.claim is not None and is_leaving(seen.claim):
        words = (
            f"PersistentVolumeClaim {seen.claim['metadata']['name']} is being deleted, which takes "
            "until no pod uses it"
        )
        # Without its Job: a claim is in use for as long as there is a pod, if it has ended or not.
        return replace(waiting, reason=CLAIM_LEAVING, message=words, job=JobStep.NONE)
    is_cache = way_of(spec.model) is Way.CACHE
    model = _known(seen, is_cache, remembered)
    if model is not None:
        return Delivery(
            model,
            revision=model.revision,
            size_bytes=model.size_bytes,
            downloaded_percent=100 if is_cache else None,
            job=JobStep.KEEP,
        )
    modes = modes_of(owner.name, spec.model, seen.claim)
    step = _step(seen, job_marks(owner, spec, settings, modes), is_cache, now)
    if step is not JobStep.KEEP:
        return replace(waiting, job=step, pinned=seen.pinned)
    if seen.job is not None and condition(seen.job, "Failed"):
        return _failed(seen)
    return _on_its_way(owner, spec, seen, is_cache, previous)


def _known(seen: Seen, is_cache: bool, remembered: Iterable[Delivered]) -> Delivered | None:
    """The model where it is delivered: as remembered, or as the Job's report says."""
    if is_cache and seen.claim is None:
        return None
    uid = seen.claim["metadata"]["uid"] if seen.claim else None
    for each in remembered:
        if each.key == seen.key and each.claim_uid == uid:
            return each
    path = seen.report.get(DeliveryField.PATH)
    is_told = seen.state == DeliveryState.DELIVERED and seen.ended_at and not seen.is_stale
    if not is_told or not path:
        return None
    return Delivered(
        key=seen.key,
        path=path,
        revision=seen.report.get(DeliveryField.REVISION) or None,
        size_bytes=seen.size_bytes,
        claim_uid=uid,
    )


def _step(seen: Seen, marks: Mapping[str, str], is_cache: bool, now: datetime) -> JobStep:
    """What to do about the Job of a model that is not delivered."""
    if seen.job is None:
        return JobStep.MAKE
    if is_leaving(seen.job):
        return JobStep.NONE
    if seen.ended_at is not None:
        is_lost = now - seen.ended_at > REPORT_WAIT and not (is_cache and seen.claim is None)
        return JobStep.REPLACE if is_lost or seen.is_stale else JobStep.KEEP
    made = seen.job["metadata"].get("annotations") or {}
    is_other = made.get(TEMPLATE_ANNOTATION) != marks[TEMPLATE_ANNOTATION]
    if condition(seen.job, "Failed"):
        return JobStep.REPLACE if is_other else JobStep.KEEP
    if made.get(DECLARED_ANNOTATION) != marks[DECLARED_ANNOTATION]:
        return JobStep.REPLACE
    # A download at work is left alone; one that fails has nothing to lose.
    return JobStep.REPLACE if is_other and _is_stuck(seen.pod) else JobStep.KEEP


def _is_stuck(pod: KubernetesObject | None) -> bool:
    if pod is None or phase_of(pod) == "Running":
        return False
    ailment = first_ailment([pod])
    return phase_of(pod) == "Failed" or (ailment is not None and ailment.reason != UNSCHEDULABLE)


def _failed(seen: Seen) -> Delivery:
    why = why_failed(seen)
    return Delivery(
        None,
        ModelPhase.FAILED,
        why.reason,
        why.message,
        revision=seen.pinned,
        size_bytes=seen.size_bytes,
        job=JobStep.KEEP,
    )


def _on_its_way(
    owner: Owner, spec: Spec, seen: Seen, is_cache: bool, previous: KubernetesObject
) -> Delivery:
    percent = None
    if is_cache and seen.size_bytes:
        done = number(seen.report.get(DeliveryField.DOWNLOADED_BYTES)) or 0
        percent = told_percent(min(99, 100 * done // seen.size_bytes), previous)
    began = bool(seen.state) or (seen.pod is not None and phase_of(seen.pod) == "Running")
    why = why_waiting(owner, spec, seen, progress(percent, seen.size_bytes))
    is_claimless = why.reason == CLAIM_NOT_FOUND
    return Delivery(
        None,
        ModelPhase.DOWNLOADING if began else ModelPhase.PENDING,
        why.reason,
        why.message,
        revision=seen.pinned,
        size_bytes=seen.size_bytes,
        downloaded_percent=percent,
        job=JobStep.KEEP,
        again=REPORT_WAIT if seen.ended_at else LOOK_AGAIN if is_claimless else None,
    )


def _named_claim(owner: Owner, spec: Spec) -> frozenset[tuple[str, str]]:
    """The claim that the spec names as the user's own: it may be one that was made by us."""
    name = foreign_claim_name(owner.name, spec.model)
    return frozenset({(CLAIM, name)}) if name else frozenset()


def _kept_claims(observed: Observed) -> frozenset[tuple[str, str]]:
    """Claims of ours that stay: retained ones, and those that a pod still reads."""
    mounted = {
        (volume.get("persistentVolumeClaim") or {}).get("claimName")
        for pod in observed.pods
        if phase_of(pod) not in ENDED
        for volume in pod.get("spec", {}).get("volumes") or ()
    }
    return frozenset(
        identity
        for identity, child in observed.children.items()
        if identity[0] == CLAIM
        and (not child["metadata"].get("ownerReferences") or identity[1] in mounted)
    )
