"""Makes what guards the pods: disruption budgets and network policies."""

from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Port
from fastgen_api.spec import KubernetesObject, Rollout, Spec
from fastgen_operator.delivery import Way, way_of
from fastgen_operator.owner import Owner, child_metadata, selector_labels
from fastgen_operator.party import Party, Surroundings
from fastgen_operator.rollout_strategy import is_zero

GUARDED_LABEL: Final = f"{names.GROUP}/guarded"
"""On pods that serve /metrics on a port of its own. Policies select only these: pods that an
earlier operator made are scraped on ports that must be closed, and stay as open as they were."""
GUARDED: Final = {GUARDED_LABEL: "true"}
GATEWAYS: Final = {"namespaceSelector": {"matchLabels": {names.GATEWAYS_LABEL: "true"}}}
"""They pass requests on themselves and are believed what they tell, so who may name a gateway is
who may label a namespace, and no tenant."""


def protection_children(
    owner: Owner, spec: Spec, policies: bool, surroundings: Surroundings
) -> tuple[KubernetesObject, ...]:
    """What guards replicas and downloads; NetworkPolicies where `policies` asks for them."""
    name = names.replica_name(owner.name)
    metadata = child_metadata(owner, name, Component.REPLICA)
    labels = selector_labels(owner, Component.REPLICA)
    budget = _budget(metadata, labels, replicas_that_may_miss(spec.rollout))
    return (budget, *(_policies(owner, spec, surroundings) if policies else ()))


def balancer_protection(party: Party, policies: bool) -> tuple[KubernetesObject, ...]:
    """What guards a balancer's pods, in the same way."""
    name = names.balancer_name(party.name)
    labels = selector_labels(party.identity, Component.BALANCER)
    budget = _budget(party.metadata(name), labels, 1)
    if not policies:
        return (budget,)
    gateways = [GATEWAYS] if party.edge.endpoint_picker else []
    peers = _balancers(party.name, *party.peers)
    policy = _policy(
        party.metadata(name),
        labels | GUARDED,
        {"ports": _ports(Port.BALANCER, Port.BALANCER_METRICS)},
        {"from": peers, "ports": _ports(Port.BALANCER_PEERS)},
        *([{"from": gateways, "ports": _ports(Port.ENDPOINT_PICKER)}] if gateways else []),
    )
    return budget, policy


def replicas_that_may_miss(rollout: Rollout) -> int | str:
    """How many replicas an eviction may take at a time: as many as a rollout, and at least one.

    A budget of none would keep a node from being drained for ever; Kubernetes rounds a percentage
    up.
    """
    return 1 if is_zero(rollout.max_unavailable) else rollout.max_unavailable


def _budget(
    metadata: KubernetesObject, labels: dict[str, str], max_unavailable: int | str
) -> KubernetesObject:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {
            "maxUnavailable": max_unavailable,
            # A pod that does not serve protects nobody; kept, it would hold up the drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels},
        },
    }


def _policies(owner: Owner, spec: Spec, surroundings: Surroundings) -> tuple[KubernetesObject, ...]:
    """Ingress only: what pods reach out for (names, hubs, collectors) is theirs to know."""
    balancers = _balancers(surroundings.party.name, *surroundings.callers)
    gateways = [GATEWAYS] if surroundings.is_called_by_gateways else []
    replica = _policy(
        child_metadata(owner, names.replica_name(owner.name), Component.REPLICA),
        selector_labels(owner, Component.REPLICA) | GUARDED,
        {"from": [*balancers, *gateways], "ports": _ports(Port.REPLICA_HTTP, Port.REPLICA_GRPC)},
        {"ports": _ports(Port.REPLICA_METRICS)},
    )
    if way_of(spec.model) not in (Way.CACHE, Way.POD):
        return (replica,)
    download = _policy(
        child_metadata(owner, names.download_name(owner.name), Component.DOWNLOAD),
        selector_labels(owner, Component.DOWNLOAD),
    )
    return replica, download


def _balancers(*called: str) -> list[KubernetesObject]:
    """The pods of balancers, by the balancers' names."""
    every = (Owner(each, namespace="", uid="") for each in called)
    return [
        {"podSelector": {"matchLabels": selector_labels(each, Component.BALANCER)}}
        for each in every
    ]


def _policy(
    metadata: KubernetesObject, labels: dict[str, str], *ingress: KubernetesObject
) -> KubernetesObject:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": list(ingress),
        },
    }


def _ports(*ports: int) -> list[KubernetesObject]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
