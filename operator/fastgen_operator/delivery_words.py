"""What is told of a model that is on its way."""

from typing import Any, Final

from fastgen_api.delivery import ModelPhase
from fastgen_api.spec import KubernetesObject

RETRYING_REMEDY: Final = (
    "It goes on by itself once pods of this namespace reach that server; the chart's "
    "hub.environment names a proxy, its hub.endpoint a mirror of the hub"
)
STEP_PERCENT: Final = 5
"""A share is told anew when it has moved by this much: a status is no progress bar."""


def told_percent(percent: int, previous: KubernetesObject) -> int:
    """The share to tell: the one that `previous`, the status before, tells, unless it moved."""
    model = previous.get("model") or {}
    before = model.get("downloadedPercent")
    if before is None or model.get("phase") != ModelPhase.DOWNLOADING:
        return percent
    return int(before) if percent > 0 and abs(percent - before) < STEP_PERCENT else percent


def progress(percent: int | None, size_bytes: int | None) -> str:
    """How much is there, such as `3.2 of 16.0 GB`."""
    if percent is None or not size_bytes:
        return "looking the model up"
    unit, scale = next(
        (unit, scale) for unit, scale in SIZES if size_bytes >= scale or scale == SIZES[-1][1]
    )
    total = size_bytes / scale
    return f"{total * percent / 100:.1f} of {total:.1f} {unit}"


SIZES: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def claim_not_found(field: str, name: str, namespace: str) -> str:
    """That a claim of the user's is missing."""
    return (
        f"{field} names PersistentVolumeClaim {name}, which does not exist in namespace "
        f"{namespace}: create it, or name another"
    )


def unbound_claim(claim: KubernetesObject) -> str:
    """That a claim has no volume yet; why is in its events, which the operator may not read."""
    name = claim["metadata"]["name"]
    spec: dict[str, Any] = claim.get("spec") or {}
    storage_class = spec.get("storageClassName")
    if storage_class is None:
        of = "names no storage class, and the cluster has no default one"
    elif storage_class == "":
        of = "takes only volumes without a storage class"
    else:
        of = f"is of storage class {storage_class}"
    return (
        f"PersistentVolumeClaim {name} has no volume yet; it {of}. "
        f"`kubectl describe pvc {name}` tells more"
    )


def claim_taken(name: str) -> str:
    """That a download waits for the pod which has a claim for itself."""
    return (
        f"PersistentVolumeClaim {name} is ReadWriteOncePod, and another pod uses it: the download "
        "starts when that one has gone. Scale to zero until the model is there, or name a "
        "claim with ReadWriteOnce or ReadWriteMany"
    )


def failed_for_good(words: str, job: str) -> str:
    """What to do about a download that is not tried again."""
    return (
        f"{words.rstrip('.')}. The download is tried again when spec.model changes, or when Job "
        f"{job} is deleted"
    )
