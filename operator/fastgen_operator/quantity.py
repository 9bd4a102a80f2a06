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


def quantity(value: Any) -> Decimal | None:
    """The number that a quantity stands for; None: it is none."""
    match = QUANTITY.match(str(value))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * SCALES[suffix or ""]
