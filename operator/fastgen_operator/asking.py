"""Adds to what is observed what no watch tells: it is asked for by name."""

from dataclasses import replace
from datetime import datetime, timedelta

from fastgen_api.spec import Spec
from fastgen_operator.cluster import Cluster
from fastgen_operator.delivery import foreign_claim_name
from fastgen_operator.delivery_seen import CLAIM
from fastgen_operator.kinds import is_object_name
from fastgen_operator.mounts import mount_warning, pods_to_ask_about
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner


async def with_warnings(
    cluster: Cluster, observed: Observed, now: datetime
) -> tuple[Observed, timedelta | None]:
    """Adds what is said about pods that wait for their volumes, and when to look again.

    Raises ClusterError.
    """
    pods, again = pods_to_ask_about(observed, now)
    told = {}
    for pod in pods:
        if words := mount_warning(await cluster.warnings_about(pod), pod):
            told[pod["metadata"]["name"]] = words
    return (replace(observed, warnings=told) if told else observed), again


async def with_claim(cluster: Cluster, owner: Owner, spec: Spec, observed: Observed) -> Observed:
    """Adds the claim of the user's that the spec names: it does not carry our labels.

    Raises ClusterError.
    """
    name = foreign_claim_name(owner.name, spec.model)
    if name is None or (CLAIM, name) in observed.children or not is_object_name(name):
        return observed
    found = await cluster.get(CLAIM, owner.namespace, name)
    if found is None:
        return observed
    return replace(observed, children={**observed.children, (CLAIM, name): found})
