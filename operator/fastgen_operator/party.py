"""A balancer with the deployments that it serves, and who else sends requests to one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastgen_api import sharing
from fastgen_api.names import Component
from fastgen_api.scaling import hold_seconds
from fastgen_api.sharing import Declared
from fastgen_api.spec import Balancer, KubernetesObject, Spec
from fastgen_operator.owner import Owner, child_metadata, owner_reference, sharer_reference


@dataclass(frozen=True, slots=True)
class Member:
    """A FastGenDeployment of the namespace, with the identity that its objects name."""

    owner: Owner
    declared: Declared

    @property
    def spec(self) -> Spec:
        """What it declares."""
        return self.declared.spec


@dataclass(frozen=True, slots=True)
class Party:
    """A balancer, and all that its objects are made from."""

    name: str
    namespace: str
    members: tuple[Member, ...]
    """The deployments that it serves, oldest first."""
    is_shared: bool = False
    targets: tuple[str, ...] = ()
    """The deployments beside the members that their routes lead to."""
    peers: tuple[str, ...] = ()
    """Other balancers that serve one of the same deployments: they ask it what it holds."""

    @property
    def identity(self) -> Owner:
        """Whose name the labels of its pods and objects bear: the balancer's own."""
        return Owner(self.name, self.namespace, uid="")

    @property
    def hold_seconds(self) -> int:
        """How long its pods may have to hold a request."""
        return max((hold_seconds(each.spec) for each in self.members), default=0)

    @property
    def drain_seconds(self) -> int:
        """How long its pods' streams may last once they are to end."""
        return max((each.spec.rollout.drain_seconds for each in self.members), default=0)

    @property
    def edge(self) -> Balancer:
        """What the oldest member says about the edge, and the others too."""
        return self.members[0].spec.balancer

    def metadata(self, name: str) -> KubernetesObject:
        """Metadata of one of its objects: it goes with the last member."""
        metadata = child_metadata(self.identity, name, Component.BALANCER)
        owners = [each.owner for each in self.members if not each.declared.deleting]
        references = (
            [sharer_reference(each) for each in owners]
            if self.is_shared
            else [owner_reference(self.members[0].owner)]
        )
        return metadata | {"ownerReferences": references}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the other FastGenDeployments of its namespace the objects of one are made from."""

    party: Party
    """The balancer that serves it."""
    callers: tuple[str, ...] = ()
    """Other balancers, whose routes lead to it."""
    is_called_by_gateways: bool = False
    """Whether one of all these balancers picks for gateways, which call replicas themselves."""


def surroundings_of(owner: Owner, neighbours: Sequence[Member]) -> Surroundings:
    """What surrounds `owner`, who is among the neighbours."""
    every = [each.declared for each in neighbours]
    spec = next(each.spec for each in neighbours if each.owner.name == owner.name)
    balancer = sharing.balancer_of(owner.name, spec)
    serving = _serving(every)
    callers = tuple(each for each in serving.get(owner.name, ()) if each != balancer)
    edges = (sharing.members_of(each, every) for each in (balancer, *callers))
    return Surroundings(
        party=_party(balancer, owner.namespace, neighbours, serving),
        callers=callers,
        is_called_by_gateways=any(
            members[0].spec.balancer.endpoint_picker for members in edges if members
        ),
    )


def alone(owner: Owner, spec: Spec) -> Surroundings:
    """What surrounds a FastGenDeployment where no other is."""
    return surroundings_of(owner, (Member(owner, Declared(owner.name, "", spec)),))


def _serving(every: Sequence[Declared]) -> Mapping[str, Sequence[str]]:
    """`sharing.balancers_serving` of all deployments at once, since a balancer may have many."""
    serving: dict[str, list[str]] = {}
    for balancer in sorted({sharing.balancer_of(each.name, each.spec) for each in every}):
        for reached in sharing.reachable_of(balancer, every):
            serving.setdefault(reached.name, []).append(balancer)
    return serving


def _party(
    balancer: str,
    namespace: str,
    neighbours: Sequence[Member],
    serving: Mapping[str, Sequence[str]],
) -> Party:
    every = [each.declared for each in neighbours]
    by_name = {each.declared.name: each for each in neighbours}
    members = sharing.members_of(balancer, every)
    served = [each.name for each in sharing.reachable_of(balancer, every)]
    own = {each.name for each in members}
    peers = {peer for each in served for peer in serving[each]}
    return Party(
        name=balancer,
        namespace=namespace,
        members=tuple(by_name[each.name] for each in members),
        is_shared=sharing.is_shared(members),
        targets=tuple(each for each in served if each not in own),
        peers=tuple(sorted(peers - {balancer})),
    )
