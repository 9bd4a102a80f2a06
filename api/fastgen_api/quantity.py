"""Reads Kubernetes quantities."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

QUANTITY: Final = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+)?(m|u|n|k|[KMGTPE]i?)?$")
SCALES: Final[Mapping[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    **{letter: Decimal(1000**power) for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}


MAX_EXPONENT: Final = 18
"""No larger number fits a quantity; the API server computes all digits of one all the same."""
MAX_LENGTH: Final = 32


def is_boundless(value: Any) -> bool:
    """Whether reading a quantity would take the API server long, and fail."""
    match = QUANTITY.match(str(value))
    if match is None:
        return False
    exponent = (match[2] or "e0")[1:].lstrip("+-").lstrip("0")
    is_large = len(exponent) > len(str(MAX_EXPONENT)) or int(exponent or "0") > MAX_EXPONENT
    return is_large or len(str(value)) > MAX_LENGTH


def quantity(value: Any) -> Decimal | None:
    """The number that a quantity stands for; None: it is none, or boundless."""
    match = QUANTITY.match(str(value))
    if match is None or is_boundless(value):
        return None
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * SCALES[suffix or ""]
