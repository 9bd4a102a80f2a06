"""How far a download is, for whoever wants to tell it."""

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fastgen_runtime.log import log_event

LOG_SECONDS: Final = 10.0
_TERMINAL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Told:
    """revision, path, size_bytes: None until they are known. wait: why nothing comes, else empty.

    busy: what is done instead of fetching bytes, else empty. brings_all: not only what the source
    resolves to.
    """

    revision: str | None = None
    path: Path | None = None
    size_bytes: int | None = None
    downloaded_bytes: int = 0
    wait: str = ""
    busy: str = ""
    brings_all: bool = True


@dataclass(slots=True)
class Progress:
    """What the connections of one download note, from several threads."""

    _told: Told = field(default_factory=Told)
    _files: dict[str, int] = field(default_factory=dict)
    _furthest: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def told(self) -> Told:
        """All of it at this moment."""
        with self._lock:
            return replace(self._told, downloaded_bytes=sum(self._files.values()))

    def pins(self, revision: str | None) -> None:
        """What the source names was resolved before."""
        with self._lock:
            self._told = replace(self._told, revision=revision)

    def resolved(self, revision: str | None, path: Path, size_bytes: int) -> None:
        """What the source names is known. path: what the model's will be."""
        with self._lock:
            self._told = replace(self._told, revision=revision, path=path, size_bytes=size_bytes)

    def has(self, name: str, num_bytes: int) -> bool:
        """So much of the file is here; whether that is more than ever before."""
        with self._lock:
            is_more = num_bytes > self._furthest.get(name, 0)
            self._files[name] = num_bytes
            if is_more:
                self._furthest[name] = num_bytes
                if self._told.wait or self._told.busy:
                    self._told = replace(self._told, wait="", busy="")
            return is_more

    def restarts(self, name: str) -> None:
        """What has come of the file was worth nothing."""
        with self._lock:
            self._files[name] = self._furthest[name] = 0

    def waits(self, sentence: str) -> None:
        """Nothing comes for now."""
        with self._lock:
            self._told = replace(self._told, wait=sentence)
        log_event("the download waits", why=sentence)

    def waits_for_another(self) -> None:
        """Another process brings the same model, which is no trouble."""
        sentence = "another process downloads this model: waiting for it"
        with self._lock:
            self._told = replace(self._told, wait="", busy=sentence)
        log_event(sentence)

    def checks(self, name: str) -> None:
        """The file has come, and is compared with its checksum."""
        with self._lock:
            self._told = replace(self._told, wait="", busy=f"checking {name}")


@contextmanager
def every(seconds: float, work: Callable[[], None], name: str) -> Iterator[None]:
    """Does the work every so many seconds, in a thread of its own, until the block ends."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def logged(progress: Progress, seconds: float = LOG_SECONDS) -> Iterator[None]:
    """A log line every so many seconds while something is missing."""

    def tell() -> None:
        told = progress.told
        if told.size_bytes is not None:
            fields = {"wait": told.wait, "busy": told.busy}
            log_event(
                "downloading",
                bytes=told.downloaded_bytes,
                total_bytes=told.size_bytes,
                **{key: text for key, text in fields.items() if text},
            )

    with every(seconds, tell, "download-log"):
        yield


@contextmanager
def shown(progress: Progress, name: str) -> Iterator[None]:
    """A line that stays up to date, for a person at a terminal; else nothing."""
    if not sys.stderr.isatty():
        yield
        return
    last = ""

    def draw() -> None:
        nonlocal last
        line = line_of(progress.told, name)
        if line and line != last:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            last = line

    try:
        with every(_TERMINAL_SECONDS, draw, "download-line"):
            yield
    finally:
        if last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def line_of(told: Told, name: str) -> str:
    """What a person reads of it; empty while there is nothing to tell."""
    if told.wait:
        return f"{name}: {told.wait}"
    if not told.size_bytes:
        return ""
    percent = math.floor(100 * told.downloaded_bytes / told.size_bytes)
    come = f"{told.downloaded_bytes / 1e9:.2f} of {told.size_bytes / 1e9:.2f} GB, {percent} %"
    return f"{name}: {told.busy or come}"
