"""Makes what guards the pods: disruption budgets and network policies."""

from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Port
from fastgen_api.spec import KubernetesObject, Rollout, Spec
from fastgen_operator.delivery import Way, way_of
from fastgen_operator.owner import Owner, child_metadata, selector_labels
from fastgen_operator.rollout_strategy import is_zero

GUARDED_LABEL: Final = f"{names.GROUP}/guarded"
"""On pods that serve /metrics on a port of its own. Policies select only these: pods that an
earlier operator made are scraped on ports that must be closed, and stay as open as they were."""


def protection_children(owner: Owner, spec: Spec, policies: bool) -> tuple[KubernetesObject, ...]:
    """A PodDisruptionBudget per component, and NetworkPolicies where `policies` asks for them."""
    budgets = (
        _budget(owner, names.replica_name(owner.name), Component.REPLICA,
                replicas_that_may_miss(spec.rollout)),
        _budget(owner, names.balancer_name(owner.name), Component.BALANCER, 1),
    )  # fmt: skip
    return budgets + (_policies(owner, spec) if policies else ())


def replicas_that_may_miss(rollout: Rollout) -> int | str:
    """How many replicas an eviction may take at a time: as many as a rollout, and at least one.

    A budget of none would keep a node from being drained for ever; Kubernetes rounds a percentage
    up.
    """
    return 1 if is_zero(rollout.max_unavailable) else rollout.max_unavailable


def _budget(
    owner: Owner, name: str, component: Component, max_unavailable: int | str
) -> KubernetesObject:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(owner, name, component),
        "spec": {
            "maxUnavailable": max_unavailable,
            # A pod that does not serve protects nobody; kept, it would hold up the drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(owner, component)},
        },
    }


def _policies(owner: Owner, spec: Spec) -> tuple[KubernetesObject, ...]:
    """Ingress only: what pods reach out for (names, hubs, collectors) is theirs to know."""
    balancers = {"podSelector": {"matchLabels": selector_labels(owner, Component.BALANCER)}}
    # They pass requests on themselves and are believed what they tell, so who may name a gateway is
    # who may label a namespace, and no tenant.
    trusted = {"namespaceSelector": {"matchLabels": {names.GATEWAYS_LABEL: "true"}}}
    gateways = [trusted] if spec.balancer.endpoint_picker else []
    replica = _policy(
        owner,
        names.replica_name(owner.name),
        Component.REPLICA,
        {"from": [balancers, *gateways], "ports": _ports(Port.REPLICA_HTTP, Port.REPLICA_GRPC)},
        {"ports": _ports(Port.REPLICA_METRICS)},
    )
    balancer = _policy(
        owner,
        names.balancer_name(owner.name),
        Component.BALANCER,
        {"ports": _ports(Port.BALANCER, Port.BALANCER_METRICS)},
        {"from": [balancers], "ports": _ports(Port.BALANCER_PEERS)},
        *([{"from": gateways, "ports": _ports(Port.ENDPOINT_PICKER)}] if gateways else []),
    )
    for policy in (replica, balancer):
        policy["spec"]["podSelector"]["matchLabels"][GUARDED_LABEL] = "true"
    if way_of(spec.model) not in (Way.CACHE, Way.POD):
        return replica, balancer
    return replica, balancer, _policy(owner, names.download_name(owner.name), Component.DOWNLOAD)


def _policy(
    owner: Owner, name: str, component: Component, *ingress: KubernetesObject
) -> KubernetesObject:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(owner, name, component),
        "spec": {
            "podSelector": {"matchLabels": selector_labels(owner, component)},
            "policyTypes": ["Ingress"],
            "ingress": list(ingress),
        },
    }


def _ports(*ports: int) -> list[KubernetesObject]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
