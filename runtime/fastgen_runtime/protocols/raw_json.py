"""Parts of a body that are kept as the JSON that they came as."""

from typing import Any, Final

import msgspec

from fastgen_runtime.front.generation import invalid

NOT_GIVEN: Final = msgspec.Raw(b"")
_MAX_DEPTH: Final = 64


def is_given(raw: bytes | msgspec.Raw) -> bool:
    """Whether the field is there and is not null."""
    return bytes(raw) not in (b"", b"null")


def json_object(where: str, raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """An object of no more levels than templates and grammars can walk; raises RequestError."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise invalid(where, "is nested too deeply") from None
    if not isinstance(value, dict):
        raise invalid(where, "must be an object")
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [below for value in level for below in _below(value)]
    if level:
        raise invalid(where, "is nested too deeply")
    return value


def _below(value: Any) -> list[Any]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
    return []
