"""The FastGenDeployment as the operator sees it, and what its children have in common."""

from dataclasses import dataclass
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject

APP_NAME: Final = "fastgen"
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of one FastGenDeployment."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    paused: bool = False


def owner_of(resource: KubernetesObject) -> Owner:
    """Reads the identity from the resource as the API serves it."""
    metadata = resource["metadata"]
    annotations = metadata.get("annotations") or {}
    return Owner(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        paused=annotations.get(names.PAUSED_ANNOTATION, "").lower() == "true",
    )


def owner_reference(owner: Owner) -> KubernetesObject:
    """The reference by which the garbage collector deletes a child with its owner."""
    return sharer_reference(owner) | {"controller": True, "blockOwnerDeletion": True}


def sharer_reference(owner: Owner) -> KubernetesObject:
    """The reference of one owner of several: the object goes with the last of them."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": owner.name,
        "uid": owner.uid,
    }


def selector_labels(owner: Owner, component: Component) -> dict[str, str]:
    """Labels that select a component's pods; a Deployment can never change them."""
    return {
        NAME_LABEL: APP_NAME,
        INSTANCE_LABEL: owner.name,
        names.COMPONENT_LABEL: str(component),
    }


def child_labels(owner: Owner, component: Component) -> dict[str, str]:
    """Labels of every child and of its pods."""
    return selector_labels(owner, component) | {
        names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER,
        names.DEPLOYMENT_LABEL: owner.name,
    }


def child_metadata(owner: Owner, name: str, component: Component) -> KubernetesObject:
    """Metadata of the child `name`."""
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": child_labels(owner, component),
        "ownerReferences": [owner_reference(owner)],
    }
