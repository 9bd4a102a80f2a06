"""Which deployments a balancer serves, from the FastGenDeployments of a namespace alone.

Operator and balancer both decide by these functions, so that neither has to tell the other.
"""

from collections.abc import Iterable, Sequence

import msgspec

from fastgen_api.spec import Balancer, Spec


class Declared(msgspec.Struct, frozen=True):
    """A FastGenDeployment, as far as its balancer goes."""

    name: str
    created: str
    """`metadata.creationTimestamp`, as the API server writes it: `2026-01-31T12:00:00Z`."""
    spec: Spec
    deleting: bool = False
    """Whether its deletion has begun."""


def balancer_of(name: str, spec: Spec) -> str:
    """Name of the balancer that serves a deployment: its own, unless it names one."""
    return spec.balancer.name or name


def served_name(name: str, spec: Spec) -> str:
    """What clients call a deployment's model."""
    return spec.model.served_name or name


def sharers_of(balancer: str, declared: Iterable[Declared]) -> tuple[Declared, ...]:
    """All deployments that name this balancer, or are named as it is; the oldest one first."""
    found = (each for each in declared if balancer_of(each.name, each.spec) == balancer)
    return tuple(sorted(found, key=_age))


def is_taken(balancer: str, declared: Iterable[Declared]) -> bool:
    """Whether a deployment of the balancer's name, and so of its Service's, is served elsewhere."""
    return any(
        each.name == balancer and balancer_of(each.name, each.spec) != balancer for each in declared
    )


def disagreement(balancer: Balancer, oldest: Balancer) -> str | None:
    """Path, below `spec`, of the first field in which the edge differs from the oldest sharer's.

    Only what the balancer's pods cannot have twice: `replicas` is the largest of all, the longest
    hold and drain count, pull secrets are united, and the rest is each deployment's own.
    """
    pairs = {
        "balancer.apiKeys": (balancer.api_keys, oldest.api_keys),
        "balancer.tls": (balancer.tls, oldest.tls),
        "balancer.endpointPicker": (balancer.endpoint_picker, oldest.endpoint_picker),
    }
    return next((path for path, (own, other) in pairs.items() if own != other), None)


def members_of(balancer: str, declared: Sequence[Declared]) -> tuple[Declared, ...]:
    """The deployments that the balancer serves: sharers that agree with the oldest of them.

    None where a deployment served elsewhere has taken the name.
    """
    sharers = sharers_of(balancer, declared)
    if not sharers or is_taken(balancer, declared):
        return ()
    edge = sharers[0].spec.balancer
    return tuple(each for each in sharers if disagreement(each.spec.balancer, edge) is None)


def is_shared(members: Sequence[Declared]) -> bool:
    """Whether requests must name one of the members: there are several, or one that asks for it."""
    return len(members) > 1 or any(each.spec.balancer.name for each in members)


def pods_of(members: Sequence[Declared]) -> int:
    """How many pods a balancer has: as many as the member wants that wants most."""
    return max((each.spec.balancer.replicas for each in members), default=1)


def served_names(members: Sequence[Declared]) -> dict[str, str]:
    """The deployment that has each served name: the oldest member that claims it."""
    owners: dict[str, str] = {}
    for each in members:
        owners.setdefault(served_name(each.name, each.spec), each.name)
    return owners


def targets_of(member: Declared, declared: Iterable[Declared]) -> tuple[str, ...]:
    """The deployments that the member's routes lead to, each once, in the routes' order.

    Without those that are not there or are being deleted, whose requests stay with the member.
    """
    there = {each.name for each in declared if not each.deleting}
    routed = (route.deployment for route in member.spec.balancer.routes)
    return tuple(name for name in dict.fromkeys(routed) if name in there and name != member.name)


def reachable_of(balancer: str, declared: Sequence[Declared]) -> tuple[Declared, ...]:
    """The members, then the deployments beside them that their routes lead to."""
    members = members_of(balancer, declared)
    by_name = {each.name: each for each in declared}
    found = {each.name: each for each in members}
    for member in members:
        for name in targets_of(member, declared):
            found.setdefault(name, by_name[name])
    return tuple(found.values())


def balancers_serving(deployment: str, declared: Sequence[Declared]) -> tuple[str, ...]:
    """Names of the balancers that send requests to a deployment, sorted.

    Its own, and those with a member whose routes lead to it. Their pods need a way to its replicas;
    and all of them to one another's peers' port, since its leader asks each for what it holds.
    """
    balancers = {balancer_of(each.name, each.spec) for each in declared}
    return tuple(
        sorted(
            each
            for each in balancers
            if any(found.name == deployment for found in reachable_of(each, declared))
        )
    )


def _age(declared: Declared) -> tuple[str, str]:
    return declared.created, declared.name
