"""Reads what a download tells, and what is remembered of one: anybody may have written there."""

import re
from collections.abc import Mapping
from typing import Final

from fastgen_api.delivery import DeliveryField, DeliveryState
from fastgen_api.names import StartupFailure

MAX_BYTES: Final = 2**63 - 1
"""As large as a number of a status may be."""
MAX_PATH: Final = 1024
MAX_MESSAGE: Final = 1000
REVISION: Final = re.compile("[0-9a-f]{7,64}")
DIGITS: Final = re.compile("[0-9]{1,19}")
STATES: Final = frozenset(DeliveryState)
REASONS: Final = frozenset(StartupFailure)


def readable(data: Mapping[str, str]) -> dict[str, str]:
    """The fields of a report (`DeliveryField`) that say something; the others are left out.

    A message is cut to MAX_MESSAGE characters.
    """
    told = {name: text for name, text in data.items() if name in READERS and READERS[name](text)}
    if DeliveryField.MESSAGE in told:
        told[DeliveryField.MESSAGE] = " ".join(told[DeliveryField.MESSAGE].split())[:MAX_MESSAGE]
    return told


def number(text: str | None) -> int | None:
    """A count of bytes as a report tells it."""
    if text is None or DIGITS.fullmatch(text) is None or int(text) > MAX_BYTES:
        return None
    return int(text)


def is_path(text: str) -> bool:
    """Whether it is a path inside the cache."""
    parts = text.split("/")
    return len(text) <= MAX_PATH and text.isprintable() and not {"", ".", ".."} & set(parts)


def is_revision(text: str) -> bool:
    """Whether it is a commit."""
    return REVISION.fullmatch(text) is not None


READERS: Final = {
    DeliveryField.KEY: bool,
    DeliveryField.STATE: STATES.__contains__,
    DeliveryField.REVISION: is_revision,
    DeliveryField.PATH: is_path,
    DeliveryField.SIZE_BYTES: lambda text: number(text) is not None,
    DeliveryField.DOWNLOADED_BYTES: lambda text: number(text) is not None,
    DeliveryField.REASON: REASONS.__contains__,
    DeliveryField.MESSAGE: bool,
}
