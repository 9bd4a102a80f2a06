"""Reads from observed objects how far a model is on its way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from fastgen_api import names
from fastgen_api.names import Component, DeliveryField, DeliveryState, ModelPhase, StartupFailure
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.ailments import UNSCHEDULABLE, first_ailment, startup_failure
from fastgen_operator.delivery import (
    Delivered,
    Delivery,
    JobStep,
    Way,
    claim_name,
    foreign_claim_name,
    key_of,
    not_started,
    remembered_models,
    way_of,
)
from fastgen_operator.delivery_children import claim_problem, job_marks
from fastgen_operator.delivery_words import (
    claim_not_found,
    failed_for_good,
    progress,
    told_percent,
    unbound_claim,
)
from fastgen_operator.fingerprint import DECLARED_ANNOTATION, TEMPLATE_ANNOTATION
from fastgen_operator.observed import Observed, Problem, deployment_of, pods_of
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Settings

CLAIM: Final = "PersistentVolumeClaim"
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
DOWNLOADING: Final = "Downloading"
CLAIM_NOT_FOUND: Final = "ClaimNotFound"
CLAIM_PENDING: Final = "ClaimPending"
CLAIM_LEAVING: Final = "ClaimTerminating"
REPORT_WAIT: Final = timedelta(seconds=30)
"""From the end of a Job to the moment when its report is given up as lost."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was observed of the download of one model."""

    job: KubernetesObject | None
    pod: KubernetesObject | None
    """The latest attempt's."""
    report: Mapping[str, str]
    """What the download told of this model."""
    claim: KubernetesObject | None
    pinned: str | None
    """The commit that the model's revision was resolved to once."""


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
    claim = _claim_of(owner, spec, observed)
    match way_of(spec.model):
        case Way.IMAGE:
            found = not_started(owner.name, spec.model)
        case Way.CLAIM:
            found = _in_claim(owner, spec, claim)
        case _:
            seen = _seen(owner, spec, observed, claim, remembered)
            found = _downloaded(owner, spec, settings, seen, remembered, previous, now)
    is_own = way_of(spec.model) is Way.CACHE and not foreign_claim_name(owner.name, spec.model)
    return replace(
        found,
        held=held,
        remembered=remembered,
        claim=claim if is_own else None,
        claim_problem=claim_problem(spec, claim) if is_own else "",
        kept=_kept_claims(observed) | _kept_job(owner, spec, found),
    )


def _claim_of(owner: Owner, spec: Spec, observed: Observed) -> KubernetesObject | None:
    name = claim_name(owner.name, spec.model)
    return observed.children.get((CLAIM, name)) if name else None


def _in_claim(owner: Owner, spec: Spec, claim: KubernetesObject | None) -> Delivery:
    ready = not_started(owner.name, spec.model)
    if claim is not None:
        return ready
    name = claim_name(owner.name, spec.model) or ""
    words = claim_not_found("spec.model.source", name, owner.namespace)
    return Delivery(None, ModelPhase.PENDING, CLAIM_NOT_FOUND, words)


def _seen(
    owner: Owner,
    spec: Spec,
    observed: Observed,
    claim: KubernetesObject | None,
    remembered: Iterable[Delivered],
) -> _Seen:
    key = key_of(owner.name, spec.model)
    job = names.download_job_name(owner.name, key)
    pods = [
        pod
        for pod in pods_of(observed, Component.DOWNLOAD)
        if pod["metadata"]["labels"].get(JOB_LABEL) == job
    ]
    data = observed.children.get(("ConfigMap", names.model_config_map_name(owner.name))) or {}
    report: Mapping[str, str] = data.get("data") or {}
    report = report if report.get(DeliveryField.KEY) == key else {}
    pinned = report.get(DeliveryField.REVISION) or next(
        (each.revision for each in remembered if each.key == key), None
    )
    return _Seen(
        job=observed.children.get(("Job", job)),
        pod=pods[-1] if pods else None,
        report=report,
        claim=claim,
        pinned=pinned or None,
    )


def _downloaded(
    owner: Owner,
    spec: Spec,
    settings: Settings,
    seen: _Seen,
    remembered: Iterable[Delivered],
    previous: KubernetesObject,
    now: datetime,
) -> Delivery:
    """How far a model is that a Job brings or resolves."""
    waiting = replace(not_started(owner.name, spec.model), revision=seen.pinned)
    if seen.claim is not None and _is_leaving(seen.claim):
        return replace(
            waiting,
            reason=CLAIM_LEAVING,
            message=f"PersistentVolumeClaim {seen.claim['metadata']['name']} is being deleted, "
            "which takes until no pod uses it",
            job=JobStep.KEEP,
        )
    is_cache = way_of(spec.model) is Way.CACHE
    model = _known(key_of(owner.name, spec.model), is_cache, seen, remembered)
    if model is not None:
        return Delivery(
            model,
            revision=model.revision,
            size_bytes=model.size_bytes,
            downloaded_percent=100 if is_cache else None,
            job=JobStep.KEEP,
        )
    step = _step(seen, job_marks(owner, spec, settings), is_cache, now)
    if step is not JobStep.KEEP:
        return replace(waiting, job=step, pinned=seen.pinned)
    if _condition(seen.job, "Failed"):
        return _failed(owner, spec, seen)
    return _on_its_way(owner, spec, seen, previous)


def _known(
    key: str, is_cache: bool, seen: _Seen, remembered: Iterable[Delivered]
) -> Delivered | None:
    """The model where it is delivered: as remembered, or as the Job's report says."""
    if is_cache and seen.claim is None:
        return None
    uid = seen.claim["metadata"]["uid"] if seen.claim else None
    for each in remembered:
        if each.key == key and each.claim_uid == uid:
            return each
    report = seen.report
    path = report.get(DeliveryField.PATH)
    is_told = report.get(DeliveryField.STATE) == DeliveryState.DELIVERED and path
    if not is_told or not path or not _condition(seen.job, "Complete") or _is_stale(seen):
        return None
    return Delivered(
        key=key,
        path=path,
        revision=report.get(DeliveryField.REVISION) or None,
        size_bytes=_number(report.get(DeliveryField.SIZE_BYTES)),
        claim_uid=uid,
    )


def _step(seen: _Seen, marks: Mapping[str, str], is_cache: bool, now: datetime) -> JobStep:
    """What to do about the Job of a model that is not delivered."""
    job = seen.job
    if job is None:
        return JobStep.MAKE
    if _is_leaving(job):
        return JobStep.NONE
    ended = _ended_at(job)
    if ended is not None:
        is_lost = now - ended > REPORT_WAIT and not (is_cache and seen.claim is None)
        return JobStep.REPLACE if is_lost or _is_stale(seen) else JobStep.KEEP
    made = job["metadata"].get("annotations") or {}
    is_other = made.get(TEMPLATE_ANNOTATION) != marks[TEMPLATE_ANNOTATION]
    if _condition(job, "Failed"):
        return JobStep.REPLACE if is_other else JobStep.KEEP
    if made.get(DECLARED_ANNOTATION) != marks[DECLARED_ANNOTATION]:
        return JobStep.REPLACE
    # A download at work is left alone; one that fails has nothing to lose.
    return JobStep.REPLACE if is_other and _is_stuck(seen.pod) else JobStep.KEEP


def _is_stale(seen: _Seen) -> bool:
    """Whether the Job ended before the claim that is there was made."""
    ended = _ended_at(seen.job)
    if ended is None or seen.claim is None:
        return False
    return datetime.fromisoformat(seen.claim["metadata"]["creationTimestamp"]) > ended


def _ended_at(job: KubernetesObject | None) -> datetime | None:
    """When a Job succeeded."""
    if not _condition(job, "Complete"):
        return None
    ended = ((job or {}).get("status") or {}).get("completionTime")
    return datetime.fromisoformat(ended) if ended else None


def _is_stuck(pod: KubernetesObject | None) -> bool:
    if pod is None or _phase(pod) == "Running":
        return False
    ailment = first_ailment([pod])
    return _phase(pod) == "Failed" or (ailment is not None and ailment.reason != UNSCHEDULABLE)


def _failed(owner: Owner, spec: Spec, seen: _Seen) -> Delivery:
    job = names.download_job_name(owner.name, key_of(owner.name, spec.model))
    why = _own_words(seen) or Problem(
        StartupFailure.DOWNLOAD_FAILED, _condition(seen.job, "Failed").get("message", "")
    )
    return Delivery(
        None,
        ModelPhase.FAILED,
        why.reason,
        failed_for_good(why.message, job),
        revision=seen.pinned,
        size_bytes=_number(seen.report.get(DeliveryField.SIZE_BYTES)),
        job=JobStep.KEEP,
    )


def _on_its_way(owner: Owner, spec: Spec, seen: _Seen, previous: KubernetesObject) -> Delivery:
    state = seen.report.get(DeliveryField.STATE)
    size = _number(seen.report.get(DeliveryField.SIZE_BYTES))
    percent = None
    if way_of(spec.model) is Way.CACHE and size:
        done = _number(seen.report.get(DeliveryField.DOWNLOADED_BYTES)) or 0
        percent = told_percent(min(99, 100 * done // size), previous)
    began = bool(state) or (seen.pod is not None and _phase(seen.pod) == "Running")
    why = _why(owner, spec, seen, progress(percent, size))
    return Delivery(
        None,
        ModelPhase.DOWNLOADING if began else ModelPhase.PENDING,
        why.reason,
        why.message,
        revision=seen.pinned,
        size_bytes=size,
        downloaded_percent=percent,
        job=JobStep.KEEP,
    )


def _why(owner: Owner, spec: Spec, seen: _Seen, share: str) -> Problem:
    """Why the model is not there yet."""
    pod = seen.pod
    if pod is None:
        job = names.download_job_name(owner.name, key_of(owner.name, spec.model))
        words = f"Job {job} has made no pod yet; `kubectl describe job {job}` tells why"
        return Problem(DOWNLOADING, words)
    if _phase(pod) == "Pending":
        return _why_pending(owner, spec, seen, pod)
    if _phase(pod) == "Failed":
        words = _own_words(seen)
        ended = words.message.rstrip(".") if words else "the last attempt ended early"
        return Problem(DOWNLOADING, f"{share}: {ended}; it is tried again")
    told = seen.report.get(DeliveryField.MESSAGE, "")
    is_waiting = seen.report.get(DeliveryField.STATE) == DeliveryState.DOWNLOADING and told
    return Problem(DOWNLOADING, f"{share}: {told}" if is_waiting else share)


def _why_pending(owner: Owner, spec: Spec, seen: _Seen, pod: KubernetesObject) -> Problem:
    """Why the download's pod does not start: its claim, the scheduler, its containers."""
    name = foreign_claim_name(owner.name, spec.model)
    if name and seen.claim is None:
        words = claim_not_found("spec.model.cache.claimName", name, owner.namespace)
        return Problem(CLAIM_NOT_FOUND, words)
    ailment = first_ailment([pod])
    is_unbound = seen.claim is not None and (
        (seen.claim.get("status") or {}).get("phase") == "Pending"
    )
    if seen.claim is not None and is_unbound and (not ailment or ailment.reason == UNSCHEDULABLE):
        scheduler = f" (scheduler: {ailment.message})" if ailment and ailment.message else ""
        return Problem(CLAIM_PENDING, f"{unbound_claim(seen.claim)}{scheduler}")
    if ailment:
        return Problem(ailment.reason, f"the download cannot start: {ailment.message}")
    return Problem(DOWNLOADING, "the download is starting")


def _own_words(seen: _Seen) -> Problem | None:
    """What the download itself said when an attempt failed."""
    report = seen.report
    if report.get(DeliveryField.STATE) == DeliveryState.FAILED and report.get(DeliveryField.REASON):
        return Problem(report[DeliveryField.REASON], report.get(DeliveryField.MESSAGE, ""))
    return startup_failure(seen.pod) if seen.pod else None


def _kept_claims(observed: Observed) -> frozenset[tuple[str, str]]:
    """Claims of ours that stay: retained ones, and those that a pod still reads."""
    mounted = {
        (volume.get("persistentVolumeClaim") or {}).get("claimName")
        for pod in observed.pods
        if _phase(pod) not in ("Succeeded", "Failed")
        for volume in pod.get("spec", {}).get("volumes") or ()
    }
    return frozenset(
        identity
        for identity, child in observed.children.items()
        if identity[0] == CLAIM
        and (not child["metadata"].get("ownerReferences") or identity[1] in mounted)
    )


def _kept_job(owner: Owner, spec: Spec, found: Delivery) -> frozenset[tuple[str, str]]:
    if found.job is not JobStep.KEEP:
        return frozenset()
    return frozenset({("Job", names.download_job_name(owner.name, key_of(owner.name, spec.model)))})


def _condition(job: KubernetesObject | None, kind: str) -> dict[str, Any]:
    """A condition of a Job that holds; empty: it does not."""
    for each in ((job or {}).get("status") or {}).get("conditions") or ():
        if each["type"] == kind and each["status"] == "True":
            return dict(each)
    return {}


def _is_leaving(found: KubernetesObject) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _phase(pod: KubernetesObject) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
