"""Typed reading of a checkpoint's configuration: errors name the field, null means missing."""

import math
from collections.abc import Mapping
from typing import Any

from fastgen_runtime.models.model_config import invalid


def mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty where it is missing; raises ModelError."""
    value = raw.get(name) or {}
    if not isinstance(value, dict):
        raise invalid(f"the model's {name} is {value!r}: an object is needed")
    return value


def number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Raises ModelError when it is no finite number, or missing without a default."""
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid(f"the model's {name} is {value!r}: a number is needed")
    return float(value)


def integer(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Raises ModelError when it is no integer, or missing without a default."""
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"the model's {name} is {value!r}: an integer is needed")
    return value


def flag(raw: Mapping[str, Any], name: str, default: bool) -> bool:
    """Raises ModelError when it is neither true nor false."""
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise invalid(f"the model's {name} is {value!r}: true or false is needed")
    return value


def positive_numbers(raw: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """A list of finite numbers above 0; raises ModelError."""
    value = raw.get(name)
    if not isinstance(value, list) or not all(
        isinstance(item, int | float) and math.isfinite(item) and item > 0 for item in value
    ):
        raise invalid(f"the model's {name} is {value!r}: a list of numbers above 0 is needed")
    return tuple(map(float, value))
