"""Says which nodes a replica may run on, and which it prefers."""

from typing import Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.confinement import local_references
from fastgen_operator.delivery import is_of_one_node
from fastgen_operator.owner import Owner, selector_labels
from fastgen_operator.settings import Images

GPU_VENDOR: Final = "nvidia.com/"
"""Begins the names of whole GPUs and of parts of them."""
GPU_TAINT: Final = "nvidia.com/gpu"
"""By this taint nodes with GPUs are usually kept free of pods that need none."""
SPREAD_OVER: Final = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")


def placement(owner: Owner, spec: Spec, images: Images) -> KubernetesObject:
    """The fields of a replica's pod that concern its node; those that say nothing are left out."""
    fields: KubernetesObject = {
        "imagePullSecrets": [*spec.image_pull_secrets, *local_references(images.pull_secrets)],
        "nodeSelector": spec.node_selector,
        "tolerations": [*spec.tolerations, *_of_gpu_nodes(spec)],
        "affinity": _affinity(owner, spec),
        "topologySpreadConstraints": (
            list(spec.topology_spread_constraints) or _spread_where_there_is_room(owner)
        ),
        "runtimeClassName": spec.runtime_class_name,
        "priorityClassName": spec.priority_class_name,
    }
    return {field: value for field, value in fields.items() if value}


def _affinity(owner: Owner, spec: Spec) -> KubernetesObject | None:
    """The spec's own, and the company of all that uses a volume which one node at a time may have.

    Kubernetes lets the first of a company go to any node.
    """
    if not is_of_one_node(spec.model):
        return spec.affinity
    theirs = spec.affinity or {}
    near = theirs.get("podAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [*(near.get(required) or ()), _company(owner)]
    return {**theirs, "podAffinity": {**near, required: terms}}


def _company(owner: Owner) -> KubernetesObject:
    users = [str(Component.REPLICA), str(Component.DOWNLOAD)]
    component = {"key": names.COMPONENT_LABEL, "operator": "In", "values": users}
    labels = {"matchLabels": {names.DEPLOYMENT_LABEL: owner.name}, "matchExpressions": [component]}
    return {"topologyKey": SPREAD_OVER[0], "labelSelector": labels}


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
