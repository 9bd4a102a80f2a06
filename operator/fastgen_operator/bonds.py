"""Tells which FastGenDeployments of a namespace have to do with one another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastgen_api.spec import KubernetesObject


@dataclass(frozen=True, slots=True)
class Bond:
    """What ties one FastGenDeployment to others, as far as its spec can be read at all."""

    uid: str
    generation: int
    balancer: str
    targets: frozenset[str]
    """Deployments that its routes name."""
    leaving: bool = False


def bond_of(resource: KubernetesObject) -> Bond:
    """Reads the bond from the resource as the API serves it; a spec may be of another version."""
    metadata = resource["metadata"]
    balancer = _map(_map(resource.get("spec")).get("balancer"))
    routes = balancer.get("routes")
    targets = (_map(each).get("deployment") for each in (routes if isinstance(routes, list) else ()))
    return Bond(
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 1)),
        balancer=str(balancer.get("name") or metadata["name"]),
        targets=frozenset(str(each) for each in targets if each),
        leaving=bool(metadata.get("deletionTimestamp")),
    )


def related(name: str, bonds: Mapping[str, Bond]) -> frozenset[str]:
    """Those by which the objects of `name` are made, itself included where it is there.

    Who shares its balancer, whom their routes name, and whose routes name one of them.
    """
    balancer = bonds[name].balancer if name in bonds else name
    members = {each for each, bond in bonds.items() if bond.balancer == balancer}
    targets = {target for member in members for target in bonds[member].targets}
    callers = {each for each, bond in bonds.items() if bond.targets & members}
    return frozenset((members | targets | callers | {balancer}) & bonds.keys())


def touched(
    name: str, before: Bond | None, after: Bond | None, bonds: Mapping[str, Bond]
) -> frozenset[str]:
    """The others whose objects or status may change with a step of `name` from one bond to another.

    Nobody's while it is no step that others see.
    """
    if before == after:
        return frozenset()
    states = [each for each in (before, after) if each]
    balancers = {each.balancer for each in states} | {name}
    targets = {target for each in states for target in each.targets}
    balancers |= {bonds[target].balancer for target in targets if target in bonds}
    # Roles and policies are their balancers': so it is their members that make them anew.
    balancers |= {bond.balancer for bond in bonds.values() if name in bond.targets}
    return _members(balancers, bonds) - {name}


def _members(balancers: Iterable[str], bonds: Mapping[str, Bond]) -> frozenset[str]:
    wanted = set(balancers)
    return frozenset(name for name, bond in bonds.items() if bond.balancer in wanted)


def _map(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
