"""Short names for values."""

import hashlib
from typing import Any, Final

import msgspec

from fastgen_api import names

DECLARED_ANNOTATION: Final = f"{names.GROUP}/declared"
"""On a Deployment or Job: fingerprint of what its owner declares about its pods."""
TEMPLATE_ANNOTATION: Final = f"{names.GROUP}/template"
"""On a Deployment or Job, and its pods: fingerprint of the pod template that the operator made."""
POD_TEMPLATE_ANNOTATION: Final = f"{names.GROUP}/pod-template"
"""On a Deployment: its pod template as the operator made it, JSON. What another operator version
keeps running is this, and no edit that somebody made of the Deployment."""
APPLIED_ANNOTATION: Final = f"{names.GROUP}/applied"
"""On every child: fingerprint of the manifest that was applied."""


def fingerprint(value: Any) -> str:
    """The same 16 characters for equal JSON values, whatever the order of their fields."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]
