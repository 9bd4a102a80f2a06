"""Tells whether an object in the cluster still is what was applied."""

import contextlib
import copy
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fastgen_api.quantity import quantity
from fastgen_api.spec import KubernetesObject
from fastgen_operator.fingerprint import (
    APPLIED_ANNOTATION,
    DECLARED_ANNOTATION,
    POD_TEMPLATE_ANNOTATION,
    TEMPLATE_ANNOTATION,
    fingerprint,
)
from fastgen_operator.merge import MERGE_KEYS, identity

QUANTITY_FIELDS: Final = frozenset({"limits", "requests", "sizeLimit"})
"""Fields whose values the API server rewrites: 1024Mi is read back as 1Gi."""

LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {**MERGE_KEYS, "ownerReferences": ("uid",)}


def with_applied_annotation(manifest: KubernetesObject) -> KubernetesObject:
    """The manifest with the fingerprint of itself, by which a later one is told apart."""
    metadata = manifest["metadata"]
    annotations = (metadata.get("annotations") or {}) | {APPLIED_ANNOTATION: fingerprint(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def is_applied(
    marked: KubernetesObject, observed: KubernetesObject, remembered: str | None = None
) -> bool:
    """Whether the observed object was made from this manifest and nobody changed our fields.

    A field that the manifest no longer has shows in the fingerprint, all others by comparison;
    what others added (defaults, other managers' fields) is no difference. `remembered` is the
    `content_fingerprint` of what the API server made of the manifest: it settles what the API
    server writes in other words than ours.
    """
    if not _holds(marked["metadata"], observed["metadata"], "metadata"):
        return False
    return remembered == content_fingerprint(observed) or _holds(
        {field: value for field, value in marked.items() if field != "metadata"}, observed, ""
    )


def content_fingerprint(observed: KubernetesObject) -> str:
    """Fingerprint of what a user of the object depends on, without its bookkeeping."""
    content = {
        field: value for field, value in observed.items() if field not in ("metadata", "status")
    }
    return fingerprint(content)


def keep_template(
    desired: KubernetesObject, observed: KubernetesObject | None, stuck: bool
) -> KubernetesObject:
    """The desired Deployment, with the running pod template when its owner declares the same.

    So a newer operator, with other images or another way to write a pod, restarts nothing until
    the owner's own declaration changes. Pods that are `stuck` have nothing to lose.
    """
    if observed is None or desired["kind"] != "Deployment" or stuck:
        return desired
    running = observed["metadata"].get("annotations") or {}
    wanted = desired["metadata"]["annotations"]
    same_declaration = running.get(DECLARED_ANNOTATION) == wanted.get(DECLARED_ANNOTATION)
    if not same_declaration or running.get(TEMPLATE_ANNOTATION) == wanted.get(TEMPLATE_ANNOTATION):
        return desired
    kept = copy.deepcopy(desired)
    put_running_template(kept, observed)
    return kept


def put_running_template(deployment: KubernetesObject, observed: KubernetesObject) -> None:
    """Gives a manifest the pod template that the observed Deployment was made with, and its marks.

    A Deployment without a note of it gets the template that it has.
    """
    running = observed["metadata"].get("annotations") or {}
    marks = deployment["metadata"]["annotations"]
    marks[TEMPLATE_ANNOTATION] = running.get(TEMPLATE_ANNOTATION, "")
    marks.pop(POD_TEMPLATE_ANNOTATION, None)
    template: Any = None
    if noted := running.get(POD_TEMPLATE_ANNOTATION):
        marks[POD_TEMPLATE_ANNOTATION] = noted
        with contextlib.suppress(msgspec.DecodeError):
            template = msgspec.json.decode(noted)
    whole = isinstance(template, dict) and "spec" in template
    deployment["spec"]["template"] = (
        template if whole else copy.deepcopy(observed["spec"]["template"])
    )


def _holds(desired: Any, observed: Any, field: str) -> bool:
    if isinstance(desired, dict):
        return _holds_fields(desired, observed, field)
    if isinstance(desired, list):
        return _holds_items(desired, observed, field)
    if not desired and observed is None:
        return True  # The API server leaves out zeros.
    return bool(desired == observed)


def _holds_fields(desired: dict[str, Any], observed: Any, field: str) -> bool:
    if observed is None:
        return not any(not _holds(value, None, name) for name, value in desired.items())
    if not isinstance(observed, dict):
        return False
    for name, value in desired.items():
        seen = observed.get(name)
        if field in QUANTITY_FIELDS or (name in QUANTITY_FIELDS and not isinstance(value, dict)):
            if not _same_quantity(value, seen):
                return False
        elif not _holds(value, seen, name):
            return False
    return True


def _holds_items(desired: list[Any], observed: Any, field: str) -> bool:
    if observed is None:
        return not desired
    if not isinstance(observed, list):
        return False
    keys = LIST_KEYS.get(field)
    # A Service's ports are called ports too, but have no such key.
    if keys and all(isinstance(item, dict) and keys[0] in item for item in (*desired, *observed)):
        seen = {identity(item, keys): item for item in observed}
        return all(_holds(item, seen.get(identity(item, keys)), "") for item in desired)
    return len(desired) == len(observed) and all(
        _holds(wanted, seen, "") for wanted, seen in zip(desired, observed, strict=True)
    )


def _same_quantity(desired: Any, observed: Any) -> bool:
    return desired == observed or (
        observed is not None and quantity(desired) == quantity(observed) is not None
    )
