"""One process at a time brings a model into a cache."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fastgen_runtime.log import log_event

_POLL_SECONDS: Final = 0.2
_UNKNOWN: Final = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def model_lock(path: Path, waits: Callable[[], None]) -> Iterator[None]:
    """Held while the block lasts, and given back by the kernel if the process dies.

    waits: called once when another process holds it. On a file system without locks nobody is
    kept out, which costs traffic and no file: parts are written by offset, and checked at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, path, waits)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, waits: Callable[[], None]) -> None:
    has_told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not has_told:
                waits()
            has_told = True
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
            log_event("the file system has no locks", path=str(path))
            return
