"""Says which nodes a replica may run on, and which it prefers."""

from collections.abc import Collection
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.confinement import local_references
from fastgen_operator.delivery import foreign_claim_name, is_of_one_node
from fastgen_operator.fingerprint import fingerprint
from fastgen_operator.owner import Owner, selector_labels
from fastgen_operator.settings import Images

GPU_VENDOR: Final = "nvidia.com/"
"""Begins the names of whole GPUs and of parts of them."""
GPU_TAINT: Final = "nvidia.com/gpu"
"""By this taint nodes with GPUs are usually kept free of pods that need none."""
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD_OVER: Final = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
CLAIM_LABEL: Final = f"{names.GROUP}/claim"
"""On pods that use a claim of the user's which only one node can have: its name, or a short one."""
LONGEST_LABEL: Final = 63


def placement(
    owner: Owner, spec: Spec, images: Images, modes: Collection[str] = ()
) -> KubernetesObject:
    """The fields of a replica's pod that concern its node; those that say nothing are left out.

    modes: access modes of the claim that the replicas mount; empty: not known, or there is none.
    """
    fields: KubernetesObject = {
        "imagePullSecrets": [*spec.image_pull_secrets, *local_references(images.pull_secrets)],
        "nodeSelector": spec.node_selector,
        "tolerations": [*spec.tolerations, *_of_gpu_nodes(spec)],
        "affinity": _affinity(owner, spec, modes),
        "topologySpreadConstraints": (
            list(spec.topology_spread_constraints) or _spread_where_there_is_room(owner)
        ),
        "runtimeClassName": spec.runtime_class_name,
        "priorityClassName": spec.priority_class_name,
    }
    return {field: value for field, value in fields.items() if value}


def company_labels(owner: Owner, spec: Spec, modes: Collection[str]) -> dict[str, str]:
    """The labels of a pod by which others that use the same claim of the user's keep it company.

    The claim may be that of several FastGenDeployments. None where every node can have it, and
    where it is this one's own.
    """
    name = foreign_claim_name(owner.name, spec.model)
    if name is None or not is_of_one_node(modes):
        return {}
    return {CLAIM_LABEL: name if len(name) <= LONGEST_LABEL else fingerprint(name)}


def _affinity(owner: Owner, spec: Spec, modes: Collection[str]) -> KubernetesObject | None:
    """The spec's own, and the company of all that uses a volume which one node at a time may have.

    Kubernetes lets the first of a company go to any node.
    """
    if not is_of_one_node(modes):
        return spec.affinity
    theirs = spec.affinity or {}
    near = theirs.get("podAffinity") or {}
    company = company_labels(owner, spec, modes)
    selector = {"matchLabels": company} if company else _own_company(owner)
    term = {"topologyKey": SPREAD_OVER[0], "labelSelector": selector}
    return {**theirs, "podAffinity": {**near, REQUIRED: [*(near.get(REQUIRED) or ()), term]}}


def without_company(affinity: KubernetesObject | None) -> KubernetesObject:
    """A pod's affinity without the company of those that use the same claim of the user's."""
    near = (affinity or {}).get("podAffinity") or {}
    terms = [
        term
        for term in near.get(REQUIRED) or ()
        if CLAIM_LABEL not in ((term.get("labelSelector") or {}).get("matchLabels") or {})
    ]
    kept = {field: value for field, value in near.items() if field != REQUIRED}
    fields = {**(affinity or {}), "podAffinity": kept | ({REQUIRED: terms} if terms else {})}
    return {field: value for field, value in fields.items() if value}


def _own_company(owner: Owner) -> KubernetesObject:
    users = [str(Component.REPLICA), str(Component.DOWNLOAD)]
    component = {"key": names.COMPONENT_LABEL, "operator": "In", "values": users}
    return {"matchLabels": {names.DEPLOYMENT_LABEL: owner.name}, "matchExpressions": [component]}


def _of_gpu_nodes(spec: Spec) -> list[KubernetesObject]:
    """What Kubernetes' admission plugin ExtendedResourceToleration adds where it is switched on."""
    if not any(resource.startswith(GPU_VENDOR) for resource in spec.resources.limits):
        return []
    toleration = {"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    return [] if toleration in spec.tolerations else [toleration]


def _spread_where_there_is_room(owner: Owner) -> list[KubernetesObject]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_labels(owner, Component.REPLICA)},
            # In a rollout the new pods are spread by themselves: the old ones are leaving.
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in SPREAD_OVER
    ]
