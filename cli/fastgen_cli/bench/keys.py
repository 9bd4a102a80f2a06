"""API keys: taken in turn by the requests, shown nowhere."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastgen_cli.errors import UserError

VARIABLE: Final = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys; without any, requests carry none."""

    values: tuple[str, ...] = field(default=(), repr=False)

    def of(self, number: int) -> str | None:
        """The key of a request: they take turns."""
        return self.values[number % len(self.values)] if self.values else None

    def hidden(self, text: str) -> str:
        """The text without any of the keys, in case an endpoint repeats what it was sent."""
        for value in self.values:
            text = text.replace(value, "[API key]")
        return text


def read_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> Keys:
    """The lines of a file, else the variable OPENAI_API_KEY, else none.

    Raises UserError where the file cannot be read or holds no key, and for one that no header
    can carry.
    """
    if file is None:
        return _checked(environment.get(VARIABLE, "").split(), VARIABLE)
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"--api-key-file {file} cannot be read: {reason}") from error
    if not lines:
        raise UserError(f"--api-key-file {file} holds no key: one a line")
    return _checked(lines, f"--api-key-file {file}")


def _checked(values: list[str], source: str) -> Keys:
    if not all(value.isascii() and value.isprintable() for value in values):
        raise UserError(f"{source}: keys are printable ASCII")
    return Keys(tuple(values))
