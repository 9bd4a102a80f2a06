"""Merges `spec.podTemplate` into a pod template that the operator made."""

from collections.abc import Mapping
from typing import Any, Final

from fastgen_api.spec import KubernetesObject, Spec

MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
}
"""Lists whose items have an identity, by the name of their field. All other lists are replaced."""

MERGED_ITEMS: Final = frozenset({"containers", "initContainers"})
"""Keyed lists whose items merge. Elsewhere a new item replaces the old one of its key: half a
volume and half another one are no volume."""

KEY_DEFAULTS: Final[Mapping[str, Any]] = {"protocol": "TCP"}


class TemplateError(ValueError):
    """`spec.podTemplate` cannot be merged; the message names the field."""

    reason = "PodTemplateInvalid"
    """Of the condition that tells."""


def their_template(spec: Spec) -> KubernetesObject:
    """`spec.podTemplate` without what is empty."""
    theirs = {"metadata": spec.pod_template.metadata, "spec": spec.pod_template.spec}
    return {field: value for field, value in theirs.items() if value}


def identity(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    """What makes an item of a keyed list the same item in another list."""
    return tuple(item.get(key, KEY_DEFAULTS.get(key)) for key in keys)


def merge(ours: KubernetesObject, theirs: KubernetesObject, path: str) -> KubernetesObject:
    """Ours with theirs on top: maps merge, keyed lists by their keys, other lists are replaced.

    `path` names `theirs` in errors. Raises TemplateError when an item of a keyed list has no key.
    """
    merged = dict(ours)
    for field, value in theirs.items():
        merged[field] = _merge_field(field, ours.get(field), value, f"{path}.{field}")
    return merged


def _merge_field(field: str, ours: Any, theirs: Any, path: str) -> Any:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return merge(ours, theirs, path)
    if field in MERGE_KEYS and isinstance(theirs, list):
        return _merge_items(field, ours or [], theirs, path)
    return theirs


def _merge_items(field: str, ours: list[Any], theirs: list[Any], path: str) -> list[Any]:
    keys = MERGE_KEYS[field]
    merged = {identity(item, keys): item for item in ours}
    new: set[tuple[Any, ...]] = set()
    for position, item in enumerate(theirs):
        if not isinstance(item, dict) or keys[0] not in item:
            raise TemplateError(f"{path}[{position}]: expected an object with `{keys[0]}`")
        key = identity(item, keys)
        if not all(isinstance(each, str | int) for each in key):
            raise TemplateError(f"{path}[{position}]: {' and '.join(keys)} must be plain values")
        if key in new and field in MERGED_ITEMS:
            raise TemplateError(f"{path}[{position}]: `{keys[0]}` {item[keys[0]]} is there twice")
        new.add(key)
        if key in merged and field in MERGED_ITEMS:
            merged[key] = merge(merged[key], item, f"{path}[{position}]")
        else:
            merged[key] = item
    return list(merged.values())
