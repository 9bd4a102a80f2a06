"""Parts of a body that are kept as the JSON that they came as."""

import re
from typing import Any, Final, TypeVar

import msgspec

from fastgen_runtime.front.generation import invalid

NOT_GIVEN: Final = msgspec.Raw(b"")
_MAX_DEPTH: Final = 64
_PLACE: Final = re.compile(r" - at (?:`key` in )?`[^`]*`")

_Value = TypeVar("_Value")


def is_given(raw: bytes | msgspec.Raw) -> bool:
    """Whether the field is there and is not null."""
    return bytes(raw) not in (b"", b"null")


def json_value(where: str, raw: str | bytes | msgspec.Raw, kind: type[_Value]) -> _Value:
    """The value of a client's JSON, which is read here only; raises RequestError naming the field.

    Whoever kept it raw saw how it is nested, and not whether its texts are UTF-8 and its numbers
    fit.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        message = _PLACE.sub("", str(error))
        raise invalid(where, f"cannot be read: {message[:1].lower()}{message[1:]}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(where, f"is no JSON: {error}") from error
    except RecursionError:
        raise invalid(where, "is nested too deeply") from None


def json_object(where: str, raw: str | bytes | msgspec.Raw) -> dict[str, Any]:
    """An object of no more levels than templates and grammars can walk; raises RequestError."""
    value = json_value(where, raw, object)
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
