"""Tells from time to time how far a long download has come."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fastgen_runtime.log import log_event

_SECONDS: Final = 10.0


@contextmanager
def download_log(folder: Path, total_bytes: int, seconds: float = _SECONDS) -> Iterator[None]:
    """Logs every so many seconds how many of `total_bytes` have come to the folder.

    It looks at the files, so that it does not matter which library brings them, and how.
    """
    before = _bytes_in(folder)
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(seconds):
            done = min(max(_bytes_in(folder) - before, 0), total_bytes)
            log_event("downloading", bytes=done, total_bytes=total_bytes)

    thread = threading.Thread(target=tell, name="download-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # it was renamed meanwhile
            continue
    return total
