"""Tells whose an object is that has the name of one of our children."""

from collections.abc import Collection
from enum import Enum

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.fingerprint import APPLIED_ANNOTATION
from fastgen_operator.kinds import is_object_name, is_of_balancer, owning_deployments
from fastgen_operator.observed import Problem
from fastgen_operator.owner import Owner
from fastgen_operator.party import Party

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
        is_orphan = _is_labelled(found) and labels.get(names.DEPLOYMENT_LABEL) == owner.name
        return Ownership.OURS if is_orphan else Ownership.FOREIGN
    if controller["uid"] == owner.uid:
        return Ownership.LEAVING if metadata.get("deletionTimestamp") else Ownership.OURS
    is_namesake = (controller["kind"], controller["name"]) == (names.KIND, owner.name)
    return Ownership.LEAVING if is_namesake else Ownership.FOREIGN


def balancer_ownership(
    party: Party, living: Collection[str], found: KubernetesObject | None
) -> Ownership:
    """Judges an object of a balancer: deployments that share one come and go as its owners.

    `living`: uids of the FastGenDeployments of the namespace. What none of them owns any more the
    garbage collector takes.
    """
    if found is None:
        return Ownership.FREE
    metadata = found["metadata"]
    owners = owning_deployments(found)
    if controller := _controller(found):
        if controller["kind"] != names.KIND:
            return Ownership.FOREIGN
        members = {each.owner.name: each.owner.uid for each in party.members}
        if controller["name"] not in (*members, party.name):
            return Ownership.FOREIGN
        is_member = members.get(controller["name"]) == controller["uid"]
        owned = is_member
    else:
        if not is_of_balancer(found, party.name) or not _is_labelled(found):
            return Ownership.FOREIGN
        owned = not owners or any(each["uid"] in living for each in owners)
    is_leaving = bool(metadata.get("deletionTimestamp")) or not owned
    return Ownership.LEAVING if is_leaving else Ownership.OURS


def may_prune(
    owner: Owner, found: KubernetesObject, balancer: str = "", balancers: Collection[str] = ()
) -> bool:
    """Whether an object that no spec asks for is deleted.

    Labels alone do not show that the operator made it: people copy them. `balancer`: the owner's;
    `balancers`: those of all FastGenDeployments of the namespace. What several own is left to those
    that still share it.
    """
    metadata = found["metadata"]
    was_applied = APPLIED_ANNOTATION in (metadata.get("annotations") or {})
    controller, owners = _controller(found), owning_deployments(found)
    if not (controller or was_applied) or not is_object_name(str(metadata["name"])):
        return False
    if controller is None and owners:
        shared = (metadata.get("labels") or {}).get(names.DEPLOYMENT_LABEL)
        is_owner = any(each["uid"] == owner.uid for each in owners)
        is_deserted = shared == balancer or shared not in balancers
        return is_owner and is_deserted and _is_labelled(found)
    return ownership_of(owner, found) is Ownership.OURS


def conflict(found: KubernetesObject | None, owner: Owner, shared: str = "") -> Problem:
    """What to tell about a foreign object; `shared`: name of the shared balancer that needs it."""
    kind = found["kind"] if found else "object"
    name = found["metadata"]["name"] if found else ""
    controller = _controller(found) if found else None
    way_out = (
        f"name another balancer than {shared} in spec.balancer.name"
        if shared
        else f"give FastGenDeployment {owner.name} another name"
    )
    whose = f"belongs to {controller['kind']} {controller['name']}" if controller else "is not ours"
    return Problem(
        NAME_CONFLICT,
        f"{kind} {name} exists already and {whose}: delete it, or {way_out}",
    )


def _is_labelled(found: KubernetesObject) -> bool:
    labels = found["metadata"].get("labels") or {}
    return bool(labels.get(names.MANAGED_BY_LABEL) == names.OPERATOR_MANAGER)


def _controller(found: KubernetesObject) -> KubernetesObject | None:
    for reference in found["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None
