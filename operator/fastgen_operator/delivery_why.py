"""Says why a model is not there yet."""

from typing import Final

from fastgen_api.delivery import DeliveryField, DeliveryState
from fastgen_api.names import StartupFailure
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.ailments import first_ailment
from fastgen_operator.delivery import claim_name, foreign_claim_name
from fastgen_operator.delivery_seen import Seen, condition, phase_of
from fastgen_operator.delivery_words import (
    RETRYING_REMEDY,
    claim_not_found,
    claim_taken,
    failed_for_good,
    unbound_claim,
)
from fastgen_operator.observed import UNSCHEDULABLE, Problem, unscheduled
from fastgen_operator.owner import Owner
from fastgen_operator.remedies import sentences

DOWNLOADING: Final = "Downloading"
RETRYING: Final = "DownloadRetrying"
"""Nothing comes for now: somebody may have to do something, or it passes."""
CLAIM_NOT_FOUND: Final = "ClaimNotFound"
CLAIM_PENDING: Final = "ClaimPending"
BY_ANOTHER_POD: Final = "PersistentVolumeClaim with ReadWriteOncePod"
"""Words of the scheduler."""


def why_failed(seen: Seen) -> Problem:
    """Why a download is not tried again, and what to do."""
    told = condition(seen.job, "Failed").get("message", "") if seen.job else ""
    why = seen.own_words or Problem(StartupFailure.DOWNLOAD_FAILED, told)
    return Problem(why.reason, failed_for_good(why.message, seen.job_name))


def why_waiting(owner: Owner, spec: Spec, seen: Seen, share: str) -> Problem:
    """Why a model that is on its way is not there yet; `share` tells how much of it is."""
    if seen.pod is None:
        job = seen.job_name
        words = f"Job {job} has made no pod yet; `kubectl describe job {job}` tells why"
        return Problem(DOWNLOADING, words)
    match phase_of(seen.pod):
        case "Pending":
            return _why_pending(owner, spec, seen, seen.pod)
        case "Failed":
            return _why_again(seen.own_words, share)
    told = seen.report.get(DeliveryField.MESSAGE)
    if seen.state != DeliveryState.DOWNLOADING or not told:
        return Problem(DOWNLOADING, share)
    if seen.report.get(DeliveryField.REASON):
        return Problem(RETRYING, sentences(f"{share}: {told}", RETRYING_REMEDY))
    return Problem(DOWNLOADING, f"{share}: {told}")


def _why_again(own: Problem | None, share: str) -> Problem:
    """Why the last attempt ended, of which Kubernetes makes another."""
    if own is None:
        return Problem(RETRYING, f"{share}: the last attempt ended early; it is tried again")
    words = f"{share}: {own.message.rstrip('.')}; it is tried again"
    match own.reason:
        case StartupFailure.DOWNLOAD_FAILED:
            return Problem(RETRYING, sentences(words, RETRYING_REMEDY))
        case StartupFailure.CACHE_FULL:
            return Problem(own.reason, words)
    # No retry mends the others: the Job is about to fail, and is told of with what to do.
    return Problem(DOWNLOADING, words)


def _why_pending(owner: Owner, spec: Spec, seen: Seen, pod: KubernetesObject) -> Problem:
    """Why the download's pod does not start: its claim, the scheduler, its containers."""
    name = foreign_claim_name(owner.name, spec.model)
    if name and seen.claim is None:
        field = "spec.model.cache.claimName"
        return Problem(CLAIM_NOT_FOUND, claim_not_found(field, name, owner.namespace))
    ailment = first_ailment([pod])
    has_no_node = ailment is None or ailment.reason == UNSCHEDULABLE
    if seen.claim is not None and phase_of(seen.claim) == "Pending" and has_no_node:
        words = unscheduled(pod)
        scheduler = f" (scheduler: {words.message})" if words and words.message else ""
        return Problem(CLAIM_PENDING, unbound_claim(seen.claim) + scheduler)
    if ailment and BY_ANOTHER_POD in ailment.message:
        return Problem(CLAIM_PENDING, claim_taken(str(claim_name(owner.name, spec.model))))
    if ailment:
        return Problem(ailment.reason, f"the download cannot start: {ailment.message}")
    return Problem(DOWNLOADING, "the download is starting")
