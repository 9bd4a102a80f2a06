"""Tells which FastGenDeployments of a namespace have to do with one another."""

from collections.abc import Collection, Mapping
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
    targets = (
        _map(each).get("deployment") for each in (routes if isinstance(routes, list) else ())
    )
    return Bond(
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation") or 0),
        balancer=str(balancer.get("name") or metadata["name"]),
        targets=frozenset(str(each) for each in targets if each),
        leaving=bool(metadata.get("deletionTimestamp")),
    )


def related(name: str, bonds: Mapping[str, Bond]) -> frozenset[str]:
    """Those by which the objects of `name` are made, itself included where it is there.

    Who shares its balancer, where their routes lead, and who shares a balancer that leads there.
    """
    balancer = bonds[name].balancer if name in bonds else name
    served = _served((balancer,), bonds) | {name}
    balancers = _serving(served, bonds) | {balancer}
    return frozenset((served | balancers | _sharers(balancers, bonds)) & bonds.keys())


def touched(
    name: str, before: Bond | None, after: Bond | None, bonds: Mapping[str, Bond]
) -> frozenset[str]:
    """The others whose objects or status may change with a step of `name` from one bond to another.

    `bonds`: those of after the step. Nobody's while it is no step that others see.
    """
    if before == after:
        return frozenset()
    states = [each for each in (before, after) if each]
    balancers = {each.balancer for each in states} | {name}
    led_to = {target for each in states for target in each.targets}
    served = _served(balancers, bonds) | led_to | {name}
    return _sharers(balancers | _serving(served, bonds), bonds) - {name}


def _sharers(balancers: Collection[str], bonds: Mapping[str, Bond]) -> frozenset[str]:
    return frozenset(name for name, bond in bonds.items() if bond.balancer in balancers)


def _served(balancers: Collection[str], bonds: Mapping[str, Bond]) -> frozenset[str]:
    """What balancers may send requests to: their sharers, and where the routes of these lead."""
    sharers = _sharers(balancers, bonds)
    return sharers.union(*(bonds[each].targets for each in sharers))


def _serving(served: Collection[str], bonds: Mapping[str, Bond]) -> frozenset[str]:
    """The balancers that may send requests to some deployments."""
    wanted = frozenset(served)
    return frozenset(
        bond.balancer for name, bond in bonds.items() if name in wanted or bond.targets & wanted
    )


def _map(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
