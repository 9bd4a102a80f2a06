"""What a file's content is known by."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Checksum:
    """sha256: of the bytes. git: SHA-1 of Git's header and the bytes, as Git names small files."""

    kind: Literal["sha256", "git"]
    value: str

    def of(self, path: Path) -> str:
        """The file's checksum of this kind, hexadecimal."""
        with path.open("rb") as file:
            if self.kind == "sha256":
                return hashlib.file_digest(file, "sha256").hexdigest()
            header = b"blob %d\0" % path.stat().st_size
            begun = hashlib.sha1(header, usedforsecurity=False)
            return hashlib.file_digest(file, lambda: begun).hexdigest()

    def __str__(self) -> str:
        return "SHA-256" if self.kind == "sha256" else "Git hash"
