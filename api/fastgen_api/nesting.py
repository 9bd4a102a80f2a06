"""Keeps JSON that is nested very deeply from harming whoever reads it.

The API server stores what is nested thousands of levels deep where a schema preserves unknown
fields. Decoders give up on it, and one object would hide all others of a list.
"""

import re
from typing import Any, Final

import msgspec

MOST_LEVELS: Final = 100
"""What people declare has a dozen."""
KEPT_LEVELS: Final = 200
"""More than MOST_LEVELS, so that who looks at what is kept finds it too deep."""
SPARE_LEVELS: Final = 500
"""Decoders count the callers' frames too, and those differ from call to call."""

_BEFORE: Final = b"[" * SPARE_LEVELS
_AFTER: Final = b"]" * SPARE_LEVELS
_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]')


def shallow(text: bytes) -> bytes:
    """The same JSON if decoders manage it; else with null for what lies below KEPT_LEVELS.

    What is no JSON comes back as it is.
    """
    try:
        _skip(_BEFORE + text + _AFTER)
    except RecursionError:
        return _cut(text)
    except msgspec.DecodeError:
        return text
    return text


def is_too_deep(value: Any) -> bool:
    """Whether a decoded value is nested deeper than MOST_LEVELS."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _cut(text: bytes) -> bytes:
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == KEPT_LEVELS + 1:
                    kept += (text[begin : token.start()], b"null")
            case b"}" | b"]":
                if depth == KEPT_LEVELS + 1:
                    begin = token.end()
                depth -= 1
    return b"".join((*kept, text[begin:]))
