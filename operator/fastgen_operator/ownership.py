"""Tells whose an object is that has the name of one of our children."""

from enum import Enum

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.fingerprint import APPLIED_ANNOTATION
from fastgen_operator.kinds import is_object_name
from fastgen_operator.observed import Problem
from fastgen_operator.owner import Owner

NAME_CONFLICT = "NameConflict"


class Ownership(Enum):
    """What a FastGenDeployment may do with an object of a child's name."""

    FREE = "free"
    """There is no such object."""
    OURS = "ours"
    LEAVING = "leaving"
    """Ours, or of an earlier FastGenDeployment of this name, and on its way out."""
    FOREIGN = "foreign"


def ownership_of(owner: Owner, found: KubernetesObject | None) -> Ownership:
    """Judges by the controller reference; an orphan that carries our labels is taken back."""
    if found is None:
        return Ownership.FREE
    metadata = found["metadata"]
    controller = _controller(found)
    if controller is None:
        labels = metadata.get("labels") or {}
        is_orphan = (
            labels.get(names.MANAGED_BY_LABEL) == names.OPERATOR_MANAGER
            and labels.get(names.DEPLOYMENT_LABEL) == owner.name
        )
        return Ownership.OURS if is_orphan else Ownership.FOREIGN
    if controller["uid"] == owner.uid:
        return Ownership.LEAVING if metadata.get("deletionTimestamp") else Ownership.OURS
    is_namesake = (controller["kind"], controller["name"]) == (names.KIND, owner.name)
    return Ownership.LEAVING if is_namesake else Ownership.FOREIGN


def may_prune(owner: Owner, found: KubernetesObject) -> bool:
    """Whether an object that no spec asks for is deleted.

    Labels alone do not show that the operator made it: people copy them.
    """
    metadata = found["metadata"]
    was_applied = APPLIED_ANNOTATION in (metadata.get("annotations") or {})
    is_made = _controller(found) is not None or was_applied
    return (
        is_made
        and ownership_of(owner, found) is Ownership.OURS
        and is_object_name(str(metadata["name"]))
    )


def conflict(found: KubernetesObject | None, owner: Owner) -> Problem:
    """What to tell about a foreign object."""
    kind = found["kind"] if found else "object"
    name = found["metadata"]["name"] if found else ""
    controller = _controller(found) if found else None
    whose = f"belongs to {controller['kind']} {controller['name']}" if controller else "is not ours"
    return Problem(
        NAME_CONFLICT,
        f"{kind} {name} exists already and {whose}: delete it, or give FastGenDeployment "
        f"{owner.name} another name",
    )


def _controller(found: KubernetesObject) -> KubernetesObject | None:
    for reference in found["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None
