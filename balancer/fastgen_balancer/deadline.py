"""How long a client waits, as its request's headers tell."""

import math
import re
from collections.abc import Mapping
from typing import Final

GRPC_TIMEOUT: Final = "grpc-timeout"
TIMEOUT_HEADERS: Final = ("x-request-timeout", "x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds. The first is anybody's to send; the others come from OpenAI's clients by themselves."""
_GRPC: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_SECONDS: Final = re.compile(r"[0-9]{1,8}(\.[0-9]{1,9})?")


def timeout_seconds(headers: Mapping[str, str]) -> float | None:
    """The shortest of the times that are told; None when none is, or none that reads."""
    found = [
        seconds
        for name in TIMEOUT_HEADERS
        if (text := headers.get(name)) and (seconds := _seconds(text)) is not None
    ]
    if (text := headers.get(GRPC_TIMEOUT)) and (match := _GRPC.fullmatch(text)):
        found.append(int(match[1]) * _UNITS[match[2]])
    return min(found, default=None)


def _seconds(text: str) -> float | None:
    if not _SECONDS.fullmatch(text):
        return None
    seconds = float(text)
    return seconds if 0 < seconds < math.inf else None
