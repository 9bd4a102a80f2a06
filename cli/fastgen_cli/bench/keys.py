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

    Raises UserError where the file cannot be read or holds no key.
    """
    if file is None:
        value = environment.get(VARIABLE, "").strip()
        return Keys((value,) if value else ())
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"--api-key-file {file} cannot be read: {reason}") from error
    if not lines or not all(line.isascii() and line.isprintable() for line in lines):
        raise UserError(f"--api-key-file {file}: one key a line, of printable ASCII")
    return Keys(tuple(lines))
