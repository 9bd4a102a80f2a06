"""Finds conditions that an earlier version of the operator wrote and this one does not know."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fastgen_api import names
from fastgen_api.spec import KubernetesObject

KEY: Final = "k:"
"""How `managedFields` begins the name of a list's item: then comes its key, as JSON."""


def is_our_status(managed: Mapping[str, Any]) -> bool:
    """Whether an item of `managedFields` is the operator's part of the status."""
    return (
        managed.get("manager") == names.OPERATOR_MANAGER
        and managed.get("operation") == "Apply"
        and managed.get("subresource") == "status"
    )


def obsolete_conditions(resource: KubernetesObject, known: frozenset[str]) -> frozenset[str]:
    """Types of conditions that are ours by the API server's records, but not among the known.

    The next apply of the status takes them away.
    """
    found = set()
    for managed in resource["metadata"].get("managedFields") or ():
        if is_our_status(managed):
            status = (managed.get("fieldsV1") or {}).get("f:status") or {}
            keys = (each for each in status.get("f:conditions") or () if each.startswith(KEY))
            found |= {msgspec.json.decode(each.removeprefix(KEY))["type"] for each in keys}
    return frozenset(found) - known
