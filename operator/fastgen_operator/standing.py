"""Judges how a FastGenDeployment stands among those of its namespace: is it served, and how."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fastgen_api import names, sharing
from fastgen_api.sharing import Declared
from fastgen_api.spec import KubernetesObject
from fastgen_operator.observed import Problem
from fastgen_operator.owner import Owner, owner_of
from fastgen_operator.party import Member, Surroundings, surroundings_of
from fastgen_operator.spec_reading import read_spec

BALANCER_NAME_TAKEN: Final = "BalancerNameTaken"
BALANCER_DIFFERS: Final = "BalancerDiffers"
SERVED_NAME_TAKEN: Final = "ServedNameTaken"
ROUTE_TARGET_MISSING: Final = "RouteTargetMissing"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the other FastGenDeployments of its namespace mean for one of them."""

    surroundings: Surroundings
    exclusion: Problem | None = None
    """Why no balancer serves it."""
    complaint: Problem | None = None
    """What keeps clients from it although it is served."""
    broken_routes: Problem | None = None


def neighbours_of(resources: Iterable[KubernetesObject]) -> tuple[Member, ...]:
    """The FastGenDeployments that can be read: one that cannot be is nobody's neighbour."""
    found = []
    for resource in resources:
        spec, metadata = read_spec(resource.get("spec") or {}), resource["metadata"]
        if isinstance(spec, Problem):
            continue
        created = str(metadata.get("creationTimestamp", ""))
        deleting = bool(metadata.get("deletionTimestamp"))
        declared = Declared(metadata["name"], created, spec, deleting)
        found.append(Member(owner_of(resource), declared))
    return tuple(found)


def standing_of(owner: Owner, neighbours: Sequence[Member]) -> Standing:
    """How `owner`, who is among the neighbours, stands among them."""
    every = [each.declared for each in neighbours]
    itself = next(each for each in every if each.name == owner.name)
    return Standing(
        surroundings=surroundings_of(owner, neighbours),
        exclusion=_exclusion(itself, every),
        complaint=_complaint(itself, every),
        broken_routes=_broken_routes(itself, every),
    )


def _exclusion(itself: Declared, every: Sequence[Declared]) -> Problem | None:
    balancer = sharing.balancer_of(itself.name, itself.spec)
    if sharing.is_taken(balancer, every):
        return Problem(
            BALANCER_NAME_TAKEN,
            f"spec.balancer.name {balancer} is the name of FastGenDeployment {balancer}, which "
            f"another balancer serves: give the balancer another name in all that share it, or "
            f"leave out spec.balancer.name of FastGenDeployment {balancer}",
        )
    oldest = sharing.sharers_of(balancer, every)[0]
    path = sharing.disagreement(itself.spec.balancer, oldest.spec.balancer)
    if path is None:
        return None
    return Problem(
        BALANCER_DIFFERS,
        f"spec.{path} is not as in FastGenDeployment {oldest.name}, the oldest one that shares the "
        f"balancer {balancer}, so the balancer does not serve this one: make spec.{path} the same "
        f"in both, or name another balancer in spec.balancer.name",
    )


def _complaint(itself: Declared, every: Sequence[Declared]) -> Problem | None:
    balancer = sharing.balancer_of(itself.name, itself.spec)
    members = sharing.members_of(balancer, every)
    if itself not in members:
        return None
    model = sharing.served_name(itself.name, itself.spec)
    owner = sharing.served_names(members)[model]
    if owner == itself.name:
        return None
    return Problem(
        SERVED_NAME_TAKEN,
        f"the model name {model} belongs to FastGenDeployment {owner}, which is older and shares "
        f"the balancer {balancer}: only requests with the header {names.Header.MODEL}: "
        f"{itself.name} come here. Give this one another spec.model.servedName, or another "
        f"spec.balancer.name",
    )


def _broken_routes(itself: Declared, every: Sequence[Declared]) -> Problem | None:
    named = dict.fromkeys(route.deployment for route in itself.spec.balancer.routes)
    lost = [each for each in named if each not in sharing.targets_of(itself, every)]
    if not lost:
        return None
    there = "is no FastGenDeployment" if len(lost) == 1 else "are no FastGenDeployments"
    return Problem(
        ROUTE_TARGET_MISSING,
        f"{', '.join(lost)} in spec.balancer.routes {there} of this namespace, or being deleted: "
        f"{itself.name} serves these requests itself. Create what is missing, or remove its route",
    )
