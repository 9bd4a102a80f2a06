"""Short names for values."""

import hashlib
from typing import Any

import msgspec


def fingerprint(value: Any) -> str:
    """The same 16 characters for equal JSON values, whatever the order of their fields."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]
