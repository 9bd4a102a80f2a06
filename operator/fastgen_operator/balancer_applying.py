"""Applies a balancer's objects that several deployments share, whichever of them asks."""

import asyncio
from weakref import WeakValueDictionary

from fastgen_api.spec import KubernetesObject
from fastgen_operator.applying import Applier, Memory, Result
from fastgen_operator.children import party_children
from fastgen_operator.cluster import Cluster
from fastgen_operator.observed import Problem
from fastgen_operator.owner import Owner
from fastgen_operator.queue import Key
from fastgen_operator.rollout import RolloutDecision
from fastgen_operator.settings import Settings
from fastgen_operator.standing import Standing, neighbours_of, standing_of


class BalancerApplier:
    """Each member makes the same objects of the same members, and one of them at a time.

    So a reconcile that began before a deployment came or went writes nothing that is outdated: what
    it applies is made from what is known when its turn comes.
    """

    def __init__(self, cluster: Cluster, settings: Settings, applier: Applier) -> None:
        self._cluster = cluster
        self._settings = settings
        self._applier = applier
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def standing(self, owner: Owner, resource: KubernetesObject) -> Standing:
        """How the owner stands among the FastGenDeployments that are known now.

        Its own spec can be read.
        """
        others = self._cluster.neighbours(owner)
        return standing_of(owner, neighbours_of((*others, resource)))

    async def apply(self, owner: Owner, resource: KubernetesObject, memory: Memory) -> Result:
        """Applies the objects of the balancer that the owner shares.

        Raises ClusterError, and UnsettledError while one of another time is being deleted.
        """
        key = (owner.namespace, self.standing(owner, resource).surroundings.party.name)
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            observed = self._cluster.observe(owner)
            latest = self._cluster.resource((owner.namespace, owner.name))
            if latest is None or latest["metadata"].get("generation") != owner.generation:
                return Result(observed)  # There is news, and another reconcile for it.
            party = self.standing(owner, latest).surroundings.party
            if not (party.is_shared and party.members):
                return Result(observed)
            children = party_children(party, self._settings, observed.served)
            current = await self._applier.claimed(owner, party, children, observed)
            if isinstance(current, Problem):
                return Result(observed, current)
            return await self._applier.apply_children(
                owner, children, current, observed, memory, RolloutDecision()
            )
