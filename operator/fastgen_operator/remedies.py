"""What to do about a pod that does not serve, in a sentence."""

import re
from collections.abc import Mapping
from typing import Any, Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject

MISSING: Final = re.compile(r"(?:secret|configmap) \"[^\"]+\" not found")
MISSING_KEY: Final = re.compile(r"(?:couldn't find|references non-existent \w+) key")
ABOUT_CLAIMS: Final = re.compile(r"persistentvolumeclaim|PersistentVolumeClaims|claim")
TRY_AGAIN: Final = "Kubernetes tries again by itself"


def component_of(pod: KubernetesObject) -> str:
    """What the pod does, as its label says."""
    return str(pod["metadata"].get("labels", {}).get(names.COMPONENT_LABEL, ""))


def sentences(*parts: str) -> str:
    """Parts joined as sentences; empty ones are left out."""
    return ". ".join(part.strip().removesuffix(".") for part in parts if part.strip())


def image_remedy(pod: KubernetesObject, container: str) -> str:
    """About an image that cannot be pulled."""
    if container not in OUR_CONTAINERS:
        where = "it in spec.podTemplate"
    elif component_of(pod) == Component.BALANCER:
        where = f"the chart's images.control{' or images.envoy' if container == 'envoy' else ''}"
    else:
        where = "spec.image, or the chart's images.runtime where it is left out"
    return f"Correct {where}, or name a Secret that may pull it in spec.imagePullSecrets"


OUR_CONTAINERS: Final = frozenset(
    {"runtime", "download", "bootstrap", "envoy", "picker"},
)
"""Names of the containers that the operator makes; others come from `spec.podTemplate`."""


def configuration_remedy(pod: KubernetesObject, container: str, words: str) -> str:
    """About a container that Kubernetes cannot make from its configuration."""
    field = "spec.model.tokenSecretRef" if container == "download" else "spec.podTemplate"
    if component_of(pod) == Component.BALANCER:
        # Its containers take nothing but volumes by the name of a Secret.
        field = "" if container else "spec.balancer.apiKeys and spec.balancer.tls"
    correct = f", or correct {field}" if field else ""
    if MISSING_KEY.search(words):
        return f"Add the key{correct}"
    if MISSING.search(words):
        return f"Create it in namespace {pod['metadata'].get('namespace', '')}{correct}"
    return ""


def mount_remedy(pod: KubernetesObject, words: str) -> str:
    """About a volume that cannot be mounted."""
    if MISSING.search(words) or MISSING_KEY.search(words):
        return configuration_remedy(pod, "", words)
    if ABOUT_CLAIMS.search(words):
        return "Correct spec.model or spec.podTemplate, or make the claim"
    return f"{TRY_AGAIN}; kubectl describe pod {pod['metadata']['name']} tells more"


def crash_remedy(pod: KubernetesObject, container: str) -> str:
    """About a container that ended with an error."""
    metadata = pod["metadata"]
    space = f"-n {metadata['namespace']} " if metadata.get("namespace") else ""
    return f"See: kubectl {space}logs {metadata['name']} -c {container} --previous"


def memory_remedy(pod: KubernetesObject, container: str) -> str:
    """About a container that was killed for the memory that it took."""
    if container not in OUR_CONTAINERS or container == "download":
        return f"Raise the limit of {container} in spec.podTemplate"
    if component_of(pod) == Component.BALANCER:
        return "The node has too little memory: move other work away from it"
    return (
        "Raise spec.resources.limits.memory, or lower spec.engine.memoryPercent, maxModelLength or "
        "maxConcurrentRequests"
    )


def room_remedy(pod: KubernetesObject) -> str:
    """About a pod for which no node has room."""
    if component_of(pod) == Component.BALANCER:
        return "Make room on a node"
    return "Make room on a node, or ask for less in spec.resources"


def placement_remedy(pod: KubernetesObject, words: str) -> str:
    """About a pod that no node takes for another reason than room."""
    if ABOUT_CLAIMS.search(words):
        return "Look at the claim: kubectl describe pvc; its storage class must exist and have room"
    if component_of(pod) == Component.BALANCER:
        return "Make a node ready that takes pods"
    return "Correct spec.nodeSelector, spec.affinity or spec.tolerations, or add a node that fits"


def memory_limit(pod: Mapping[str, Any], container: str) -> str:
    """The limit of a container's memory, as it was written; empty: none."""
    spec = pod.get("spec", {})
    for each in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        if each["name"] == container:
            return str(((each.get("resources") or {}).get("limits") or {}).get("memory", ""))
    return ""
