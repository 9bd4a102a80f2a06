"""Refuses what `spec.podTemplate` must leave alone: all by which the operator knows its pods."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fastgen_api import names
from fastgen_api.quantity import MAX_EXPONENT, MAX_LENGTH, is_boundless
from fastgen_api.spec import KubernetesObject
from fastgen_operator.merge import TemplateError

PATH: Final = "spec.podTemplate"
LISTS: Final = ("containers", "initContainers", "volumes")
LISTS_OF_CONTAINERS: Final = ("env", "ports", "volumeMounts")
QUANTITY_FIELDS: Final = frozenset({"divisor", "limits", "overhead", "requests", "sizeLimit"})
CONTAINERS: Final = ("containers", "initContainers")
REPLACEABLE_VOLUMES: Final = frozenset({"tmp", "shared-memory"})
"""Volumes of ours without content: another disk under them changes nothing for the operator."""
REPLACEABLE_MOUNTS: Final = frozenset({"/tmp", "/dev/shm"})
OURS_IN_CONTAINERS: Final = {
    "command": "the operator says what runs; spec.model and spec.engine say how",
    "args": "the operator makes them from spec.model and spec.engine",
    "terminationMessagePath": "the operator reads there why a replica cannot serve",
}
RESERVED_ENVIRONMENT: Final = ("POD_NAME",)


def check_contract(ours: KubernetesObject, theirs: KubernetesObject) -> None:
    """Raises TemplateError, naming the field and why, at the first breach."""
    for path, why in _breaches(ours, theirs):
        raise TemplateError(f"{PATH}.{path} cannot be set: {why}")


def _breaches(ours: KubernetesObject, theirs: KubernetesObject) -> Iterator[tuple[str, str]]:
    yield from _of_metadata(ours["metadata"], theirs.get("metadata") or {})
    our_pod, their_pod = ours["spec"], theirs.get("spec") or {}
    yield from _of_quantities(their_pod, "spec")
    yield from _of_grace(our_pod, their_pod)
    yield from _of_lists(their_pod, LISTS, "spec")
    for field in CONTAINERS:
        for position, item in _items(their_pod, field):
            path = f"spec.{field}[{position}]"
            yield from _of_ports(our_pod, item, path)
            known = [each for each in our_pod.get(field, ()) if each["name"] == item.get("name")]
            if known:
                yield from _of_container(known[0], item, path)
    our_volumes = [each["name"] for each in our_pod.get("volumes", ())]
    for position, item in _items(their_pod, "volumes"):
        name = item.get("name")
        if name in [each for each in our_volumes if each not in REPLACEABLE_VOLUMES]:
            yield f"spec.volumes[{position}]", f"the volume {name} is the operator's"


def _of_metadata(ours: KubernetesObject, theirs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in theirs:
        if field not in ("labels", "annotations"):
            yield f"metadata.{field}", "a pod takes over only labels and annotations"
        elif not isinstance(theirs[field], dict):
            yield f"metadata.{field}", "an object is expected"
    for name, value in _fields(theirs, "labels"):
        if name in ours["labels"] and value != ours["labels"][name]:
            yield f'metadata.labels["{name}"]', "the operator finds its pods by this label"
    for name, _ in _fields(theirs, "annotations"):
        if name.startswith(f"{names.GROUP}/"):
            yield f'metadata.annotations["{name}"]', "annotations of this group are the operator's"


def _of_grace(ours: KubernetesObject, theirs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    field = "terminationGracePeriodSeconds"
    least, asked = ours[field], theirs.get(field)
    if field in theirs and (not isinstance(asked, int) or asked < least):
        yield (
            f"spec.{field}",
            f"{asked} is less than the {least} seconds that a drain may take; lower "
            "spec.rollout.drainSeconds instead",
        )


def _of_ports(
    our_pod: KubernetesObject, theirs: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str]]:
    """All containers of a pod share one address, and Services find ports by their names."""
    ours = [port for each in our_pod["containers"] for port in each["ports"]]
    port_names = [port["name"] for port in ours]
    numbers = [port["containerPort"] for port in ours]
    for position, port in _items(theirs, "ports"):
        if port.get("name") in port_names or port.get("containerPort") in numbers:
            taken = ", ".join(f"{each['name']} ({each['containerPort']})" for each in ours)
            yield f"{path}.ports[{position}]", f"the ports {taken} are the replica's own"


def _of_container(
    ours: KubernetesObject, theirs: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str]]:
    yield from _of_lists(theirs, LISTS_OF_CONTAINERS, path)
    for field, why in OURS_IN_CONTAINERS.items():
        if field in theirs:
            yield f"{path}.{field}", why
    lifecycle = theirs.get("lifecycle")
    if "lifecycle" in theirs and (not isinstance(lifecycle, dict) or "preStop" in lifecycle):
        yield f"{path}.lifecycle.preStop", "balancers need its seconds to stop picking the pod"
    for position, variable in _items(theirs, "env"):
        if variable.get("name") in RESERVED_ENVIRONMENT:
            yield f"{path}.env[{position}]", f"the operator sets {variable['name']}"
    mounted = [each["mountPath"] for each in ours.get("volumeMounts", ())]
    taken = [each for each in mounted if each not in REPLACEABLE_MOUNTS]
    for position, mount in _items(theirs, "volumeMounts"):
        if mount.get("mountPath") in taken:
            where = mount["mountPath"]
            yield f"{path}.volumeMounts[{position}]", f"the operator mounts its own at {where}"


def _of_lists(
    theirs: Mapping[str, Any], fields: Iterable[str], path: str
) -> Iterator[tuple[str, str]]:
    """Merged lists: anything else would replace ours as a whole."""
    for field in fields:
        if field in theirs and not isinstance(theirs[field], list):
            yield f"{path}.{field}", "a list is expected"


def _of_quantities(
    theirs: Any, path: str, *, is_quantity: bool = False
) -> Iterator[tuple[str, str]]:
    """Quantities by the names of their fields, wherever they are."""
    if isinstance(theirs, list):
        for position, item in enumerate(theirs):
            yield from _of_quantities(item, f"{path}[{position}]")
    elif isinstance(theirs, dict):
        for field, value in theirs.items():
            inside = is_quantity or field in QUANTITY_FIELDS
            yield from _of_quantities(value, f"{path}.{field}", is_quantity=inside)
    elif is_quantity and is_boundless(theirs):
        yield (
            path,
            f"a quantity has an exponent of at most {MAX_EXPONENT} and {MAX_LENGTH} characters",
        )


def _items(theirs: Mapping[str, Any], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list, with their positions; what is none is left to the API server."""
    found = theirs.get(field)
    for position, item in enumerate(found if isinstance(found, list) else ()):
        if isinstance(item, dict):
            yield position, item


def _fields(theirs: Mapping[str, Any], field: str) -> Iterator[tuple[str, Any]]:
    found = theirs.get(field)
    yield from found.items() if isinstance(found, dict) else ()
