"""The kinds of objects that the operator reads and writes, and how the API names them."""

import re
from collections.abc import Mapping
from typing import Final

from lightkube.core.client import LabelSelector
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.generic_resource import create_api_info as api_info

from fastgen_api import names
from fastgen_api.foreign_scaler import AUTOSCALER_KIND, aim_of
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import CHILD_KINDS
from fastgen_operator.monitoring import MONITORING_KINDS

ALL_NAMESPACES: Final = "*"

OBJECT_NAME: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
MAX_OBJECT_NAME: Final = 253

OWN_KINDS: Final = tuple(dict.fromkeys((*CHILD_KINDS, *MONITORING_KINDS)))
"""Kinds of children."""

WATCHED_KINDS: Final = (*OWN_KINDS, "Pod", AUTOSCALER_KIND)
"""All kinds whose objects tell about a FastGenDeployment."""

OUR_LABELS: Final[LabelSelector] = {names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER}


def _resource(group: str, version: str, kind: str, plural: str) -> type[GenericNamespacedResource]:
    # Not through lightkube's registry: it would refuse a second class for the kinds that lightkube
    # itself loads, and those are no dicts.
    return type(
        kind, (GenericNamespacedResource,), {"_api_info": api_info(group, version, kind, plural)}
    )


RESOURCES: Final[Mapping[str, type[GenericNamespacedResource]]] = {
    "ServiceAccount": _resource("", "v1", "ServiceAccount", "serviceaccounts"),
    "Role": _resource("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    "RoleBinding": _resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    "ConfigMap": _resource("", "v1", "ConfigMap", "configmaps"),
    "PersistentVolumeClaim": _resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    "Service": _resource("", "v1", "Service", "services"),
    "PodDisruptionBudget": _resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    "NetworkPolicy": _resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    "Job": _resource("batch", "v1", "Job", "jobs"),
    "Deployment": _resource("apps", "v1", "Deployment", "deployments"),
    AUTOSCALER_KIND: _resource("autoscaling", "v2", AUTOSCALER_KIND, "horizontalpodautoscalers"),
    "Pod": _resource("", "v1", "Pod", "pods"),
    "Event": _resource("events.k8s.io", "v1", "Event", "events"),
    "PodMonitor": _resource("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    "PrometheusRule": _resource("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    names.KIND: _resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL),
}


def version_of(kind: str) -> str:
    """The `apiVersion` of a kind."""
    return str(RESOURCES[kind]._api_info.resource.api_version)


def is_object_name(text: str) -> bool:
    """Whether the text can name an object, and so be a part of a URL: it is a DNS subdomain."""
    return len(text) <= MAX_OBJECT_NAME and OBJECT_NAME.fullmatch(text) is not None


def path_of(kind: str, namespace: str) -> str:
    """The path of the API below which a kind is listed; `namespace` may be ALL_NAMESPACES."""
    info = RESOURCES[kind]._api_info
    root = f"/apis/{info.resource.group}" if info.resource.group else "/api"
    within = "" if namespace == ALL_NAMESPACES else f"/namespaces/{namespace}"
    return f"{root}/{info.resource.version}{within}/{info.plural}"


def is_labelled(kind: str) -> bool:
    """Whether of a kind only those objects matter that carry OUR_LABELS."""
    return kind not in (names.KIND, AUTOSCALER_KIND)


def deployments_of(kind: str, found: KubernetesObject) -> tuple[str, ...]:
    """The FastGenDeployments that an object tells about: by its label, and those that own it.

    Objects of a shared balancer bear the balancer's name in that label.
    """
    metadata = found["metadata"]
    if kind == names.KIND:
        return (str(metadata["name"]),)
    if kind == AUTOSCALER_KIND:
        aim = aim_of(found)
        return (aim,) if aim else ()
    label = str((metadata.get("labels") or {}).get(names.DEPLOYMENT_LABEL, ""))
    owners = (str(each["name"]) for each in owning_deployments(found))
    return tuple(dict.fromkeys((*((label,) if label else ()), *owners)))


def owning_deployments(found: KubernetesObject) -> list[KubernetesObject]:
    """The owner references of an object that name FastGenDeployments."""
    references = found["metadata"].get("ownerReferences") or ()
    return [each for each in references if each.get("kind") == names.KIND]


def is_of_balancer(found: KubernetesObject, balancer: str) -> bool:
    """Whether an object belongs to the balancer of this name, and not to replicas or a download."""
    labels = found["metadata"].get("labels") or {}
    return (labels.get(names.COMPONENT_LABEL), labels.get(names.DEPLOYMENT_LABEL)) == (
        names.Component.BALANCER,
        balancer,
    )
