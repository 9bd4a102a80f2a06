"""What the API server holds of our objects, as far as we were told."""

from collections.abc import Iterable, Iterator, Mapping

from fastgen_api import names
from fastgen_api.foreign_scaler import AUTOSCALER_KIND, ForeignScaler, foreign_scalers
from fastgen_api.spec import KubernetesObject
from fastgen_operator.bonds import Bond, related
from fastgen_operator.children import id_of
from fastgen_operator.kinds import (
    ALL_NAMESPACES,
    OWN_KINDS,
    WATCHED_KINDS,
    is_of_balancer,
    owning_deployments,
)
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.observed import Observed
from fastgen_operator.queue import Key
from fastgen_operator.shelf import Shelf


class Store:
    """A shelf for each watched kind in each watched namespace."""

    def __init__(self, namespaces: Iterable[str] = ()) -> None:
        self.scopes = tuple(namespaces) or (ALL_NAMESPACES,)
        self._shelves = {
            (kind, scope): Shelf(kind, scope)
            for scope in self.scopes
            for kind in (names.KIND, *WATCHED_KINDS)
        }

    @property
    def shelves(self) -> tuple[Shelf, ...]:
        """All shelves."""
        return tuple(self._shelves.values())

    def count(self, kind: str) -> int:
        """How many objects of a kind are known."""
        return sum(len(shelf) for shelf in self.shelves if shelf.kind == kind)

    def shelf(self, kind: str, namespace: str) -> Shelf | None:
        """Where an object of this kind and namespace belongs; None: nobody watches it."""
        scope = ALL_NAMESPACES if self.scopes == (ALL_NAMESPACES,) else namespace
        return self._shelves.get((kind, scope))

    def put(self, found: KubernetesObject) -> None:
        """Takes the API server's answer to a write of ours."""
        shelf = self.shelf(found["kind"], found["metadata"]["namespace"])
        if shelf is not None:
            shelf.put(found)

    def missing(self, namespace: str) -> tuple[str, ...]:
        """Kinds of which it is not known yet what a namespace holds."""
        shelves = (self.shelf(kind, namespace) for kind in WATCHED_KINDS)
        return tuple(
            shelf.kind
            for shelf in shelves
            if shelf is not None and shelf.is_served and not shelf.is_filled
        )

    def resource(self, key: Key) -> KubernetesObject | None:
        """The FastGenDeployment, or None."""
        return next(iter(self._of(names.KIND, key)), None)

    def bonds(self, namespace: str) -> Mapping[str, Bond]:
        """What ties the FastGenDeployments of a namespace to one another, by their names."""
        shelf = self.shelf(names.KIND, namespace)
        return {} if shelf is None else shelf.bonds(namespace)

    def neighbours(self, key: Key) -> tuple[KubernetesObject, ...]:
        """The FastGenDeployments by which the objects of this one are made, itself included."""
        found = sorted(related(key[1], self.bonds(key[0])))
        resources = (self.resource((key[0], name)) for name in found)
        return tuple(each for each in resources if each is not None)

    def observe(self, key: Key) -> Observed:
        """All that the shelves hold of a deployment, its balancer and what it is an owner of."""
        return Observed(
            children={
                id_of(child): child for kind in OWN_KINDS for child in self._around(kind, key)
            },
            pods=tuple(self._around("Pod", key)),
            scalers=tuple(self._scalers(key)),
            served=frozenset(kind for kind in MONITORING_KINDS if self._serves(kind, key[0])),
            balancer=self._balancer(key)[1],
        )

    def _around(self, kind: str, key: Key) -> Iterator[KubernetesObject]:
        """Objects of the deployment itself, then those of a balancer of another name."""
        balancer = self._balancer(key)
        for found in self._of(kind, key):
            # A balancer that others share may bear the name of this deployment, which is no member.
            if balancer == key or not is_of_balancer(found, key[1]) or _owns(key[1], found):
                yield found
        if balancer != key:
            others = self._of(kind, balancer)
            yield from (each for each in others if is_of_balancer(each, balancer[1]))

    def sharers(self, key: Key) -> tuple[Key, ...]:
        """The FastGenDeployments whose balancer has this name."""
        bonds = self.bonds(key[0])
        return tuple((key[0], name) for name, each in bonds.items() if each.balancer == key[1])

    def _balancer(self, key: Key) -> Key:
        bond = self.bonds(key[0]).get(key[1])
        return (key[0], bond.balancer if bond else key[1])

    def _scalers(self, key: Key) -> Iterator[ForeignScaler]:
        """Those of the resource and its replicas, and those of the balancer in front of them."""
        balancer = self._balancer(key)
        for owner in dict.fromkeys((key, balancer)):
            for scaler in foreign_scalers(self._of(AUTOSCALER_KIND, owner), owner[1]):
                is_of_its_balancer = scaler.target_name == names.balancer_name(owner[1])
                if owner == (balancer if is_of_its_balancer else key):
                    yield scaler

    def _of(self, kind: str, key: Key) -> Iterator[KubernetesObject]:
        shelf = self.shelf(kind, key[0])
        return iter(()) if shelf is None else shelf.of(key)

    def _serves(self, kind: str, namespace: str) -> bool:
        shelf = self.shelf(kind, namespace)
        return shelf is not None and shelf.is_served and shelf.is_filled


def _owns(name: str, found: KubernetesObject) -> bool:
    return name in (each["name"] for each in owning_deployments(found))
