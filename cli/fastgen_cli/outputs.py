"""Files that commands write where they are asked for one."""

import errno
import os
from pathlib import Path

from fastgen_cli.errors import UserError


def check_file(path: Path, flag: str) -> None:
    """Raises UserError where the file could not be written, before anything is computed.

    Touches nothing: a pipe that was opened and closed would have ended for its reader.
    """
    try:
        reason = _reason(path)
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror or error}") from error
    if reason:
        raise UserError(f"{flag} {path}: {os.strerror(reason)}")


def _reason(path: Path) -> int:
    """The error that writing would give; 0: none."""
    if path.is_dir():
        return errno.EISDIR
    if path.exists():
        return 0 if os.access(path, os.W_OK) else errno.EACCES
    folder = path.parent
    if not folder.exists():
        return errno.ENOENT
    if not folder.is_dir():
        return errno.ENOTDIR
    return 0 if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES


def write_file(path: Path, content: bytes, flag: str) -> None:
    """Raises UserError where the file cannot be written."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror or error}") from error
