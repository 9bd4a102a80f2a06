"""A file that has not come whole yet, and what it takes to go on with it."""

import json
import os
from pathlib import Path
from typing import BinaryIO


class Partial:
    """The part of a file that is here; it outlives the process, however that ends.

    validator: what the server called the version that this is a part of, if it did; without one
    the part can only be gone on with where a checksum will tell.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._notes = path.with_name(f"{path.name}.json")
        self.validator = self._read_validator()

    @property
    def num_bytes(self) -> int:
        """How much is here."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def begin(self, validator: str | None) -> None:
        """Starts from nothing, with a part of this version."""
        self.drop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if validator is not None:
            self._notes.write_text(json.dumps({"validator": validator}), encoding="utf-8")
        self.validator = validator
        self.path.touch()

    def open_at(self, offset: int) -> BinaryIO:
        """The file, to write on from `offset`; each write is with the kernel when it returns."""
        file = self.path.open("r+b", buffering=0)
        file.truncate(offset)
        file.seek(offset)
        return file

    def drop(self) -> None:
        """Removes what has come."""
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)
        self.validator = None

    def become(self, target: Path) -> None:
        """The whole file takes its name at once, also where the machine loses power meanwhile."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        self._notes.unlink(missing_ok=True)

    def _read_validator(self) -> str | None:
        try:
            value = json.loads(self._notes.read_text(encoding="utf-8"))["validator"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return value if isinstance(value, str) else None
