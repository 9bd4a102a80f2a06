"""What is observed of the download of one model: its Job, latest pod, report and claim."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fastgen_api import names
from fastgen_api.delivery import DeliveryField, DeliveryState
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.ailments import startup_failure
from fastgen_operator.delivery import Delivered, claim_name, key_of
from fastgen_operator.delivery_report import number, readable
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner

CLAIM: Final = "PersistentVolumeClaim"
JOB_LABEL: Final = "batch.kubernetes.io/job-name"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was observed of the download of one model."""

    key: str
    job_name: str
    job: KubernetesObject | None
    pod: KubernetesObject | None
    """The latest attempt's."""
    report: Mapping[str, str]
    """What the download told of this model (`DeliveryField`)."""
    claim: KubernetesObject | None
    pinned: str | None
    """The commit that the model's revision was resolved to once."""

    @property
    def state(self) -> str:
        """A `DeliveryState`; empty: nothing was told yet."""
        return self.report.get(DeliveryField.STATE, "")

    @property
    def size_bytes(self) -> int | None:
        """The size of the model, once it is known."""
        return number(self.report.get(DeliveryField.SIZE_BYTES))

    @property
    def own_words(self) -> Problem | None:
        """What the download itself said when an attempt failed."""
        reason = self.report.get(DeliveryField.REASON)
        if self.state == DeliveryState.FAILED and reason:
            return Problem(reason, self.report.get(DeliveryField.MESSAGE, ""))
        return startup_failure(self.pod) if self.pod else None

    @property
    def ended_at(self) -> datetime | None:
        """When the Job succeeded."""
        if self.job is None or not condition(self.job, "Complete"):
            return None
        ended = self.job["status"].get("completionTime")
        return datetime.fromisoformat(ended) if ended else None

    @property
    def is_stale(self) -> bool:
        """Whether the Job ended before the claim that is there was made."""
        if self.ended_at is None or self.claim is None:
            return False
        made = datetime.fromisoformat(self.claim["metadata"]["creationTimestamp"])
        return made > self.ended_at


def seen_of(owner: Owner, spec: Spec, observed: Observed, remembered: Iterable[Delivered]) -> Seen:
    """Gathers what was observed of the download of the spec's model."""
    key = key_of(owner.name, spec.model)
    job_name = names.download_job_name(owner.name, key)
    config_map = observed.children.get(("ConfigMap", names.model_config_map_name(owner.name)))
    report = readable((config_map or {}).get("data") or {})
    if report.get(DeliveryField.KEY) != key:
        report = {}
    pinned = report.get(DeliveryField.REVISION) or next(
        (each.revision for each in remembered if each.key == key), None
    )
    return Seen(
        key=key,
        job_name=job_name,
        job=observed.children.get(("Job", job_name)),
        pod=_latest_pod(observed, job_name),
        report=report,
        claim=claim_of(owner, spec, observed),
        pinned=pinned or None,
    )


def _latest_pod(observed: Observed, job_name: str) -> KubernetesObject | None:
    """The pod of a Job's latest attempt; those of earlier ones stay as records."""
    pods = [
        pod
        for pod in observed.pods
        if (pod["metadata"].get("labels") or {}).get(JOB_LABEL) == job_name and not is_leaving(pod)
    ]
    return max(pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), default=None)


def claim_of(owner: Owner, spec: Spec, observed: Observed) -> KubernetesObject | None:
    """The claim that the replicas mount, if it is there."""
    name = claim_name(owner.name, spec.model)
    return observed.children.get((CLAIM, name)) if name else None


def condition(job: KubernetesObject, kind: str) -> dict[str, Any]:
    """A condition of a Job that holds; empty: it does not."""
    for each in (job.get("status") or {}).get("conditions") or ():
        if each["type"] == kind and each["status"] == "True":
            return dict(each)
    return {}


def is_leaving(found: KubernetesObject) -> bool:
    """Whether an object is being deleted."""
    return bool(found["metadata"].get("deletionTimestamp"))


def phase_of(found: KubernetesObject) -> str:
    """The phase of a pod or claim."""
    return str((found.get("status") or {}).get("phase", ""))
