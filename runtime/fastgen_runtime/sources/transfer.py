"""Brings files over HTTP: gone on with after any break, whole or not at all."""

import errno
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from fastgen_api.names import StartupFailure
from fastgen_runtime.log import log_event
from fastgen_runtime.sources.checksum import Checksum
from fastgen_runtime.sources.partial import Partial
from fastgen_runtime.sources.patience import Patience, StoppedError
from fastgen_runtime.sources.progress import Progress
from fastgen_runtime.sources.trouble import DownloadError, PassingError, RefusalError, host_of
from fastgen_runtime.sources.web import Web

_CONNECTIONS: Final = 4
"""Files that come at the same time."""
_HEAD_BYTES: Final = 65536
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
LARGEST_ANSWER_BYTES: Final = 32 * 10**9
"""Content networks serve no more than 50 GB at once."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of known size. checksum: None where only the size can be checked.

    target: where it comes to lie. validator: what the server called this version, if it did.
    """

    url: str
    name: str
    size_bytes: int
    target: Path
    checksum: Checksum | None = None
    validator: str | None = None

    @property
    def partial(self) -> Partial:
        """What has come of it."""
        return Partial(self.target.with_name(f"{self.target.name}.incomplete"))


@dataclass(frozen=True, slots=True)
class Head:
    """How a file begins: at most 64 KiB. validator: for `If-Range`, if the server gave one."""

    data: bytes
    size_bytes: int
    validator: str | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """The connections of one download."""

    web: Web
    patience: Patience
    progress: Progress

    def read(self, url: str) -> bytes:
        """The whole of a small answer. Raises DownloadError and RefusalError."""
        return self.patience.persist(lambda: self.read_once(url))

    def read_once(self, url: str) -> bytes:
        """The same by one request: raises PassingError, too."""
        with self.web.get(url) as response:
            data = response.read()
        self.patience.note_progress()
        return data

    def head(self, url: str, name: str) -> Head:
        """How the file begins, and how long it is. Raises DownloadError and RefusalError."""
        return self.patience.persist(lambda: self._head(url, name))

    def _head(self, url: str, name: str) -> Head:
        data = bytearray()
        with self.web.get(url, {"Range": f"bytes=0-{_HEAD_BYTES - 1}"}) as response:
            size = _Span.of(response).total
            if size is None:
                raise DownloadError(
                    StartupFailure.MODEL_INVALID,
                    f"{host_of(url)} does not tell the length of {name} (Content-Length): "
                    "nothing could tell the whole file from a part of it",
                )
            for piece in response.iter_bytes():
                data += piece
                if len(data) >= min(_HEAD_BYTES, size):
                    break
        self.patience.note_progress()
        return Head(bytes(data[:_HEAD_BYTES]), size, _validator(response))

    def bring(self, files: Sequence[RemoteFile], cache: Path) -> None:
        """Brings the files into the cache, several at the same time.

        Raises DownloadError, RefusalError and OSError; what has come is kept.
        """
        missing = sum(file.size_bytes - min(file.partial.num_bytes, file.size_bytes)
                      for file in files)  # fmt: skip
        check_room(cache, missing)
        if len(files) == 1:
            self._bring(files[0], cache)
            return
        with ThreadPoolExecutor(_CONNECTIONS, "download") as pool:
            try:
                running = [pool.submit(self._bring, file, cache) for file in files]
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                errors = [error for future in done if (error := future.exception())]
            except BaseException:
                self.patience.stop()
                raise
            if errors:
                self.patience.stop()
                raise next((e for e in errors if not isinstance(e, StoppedError)), errors[0])

    def _bring(self, file: RemoteFile, cache: Path) -> None:
        partial = file.partial
        try:
            actual = self._fill_and_check(file, partial)
            if file.checksum is not None and actual != file.checksum.value:
                log_event("a wrong file is downloaded once more", file=file.name, checksum=actual)
                partial.drop()
                self.progress.restarts(file.name)
                actual = self._fill_and_check(file, partial)
            if file.checksum is not None and actual != file.checksum.value:
                partial.drop()
                raise DownloadError(
                    StartupFailure.CHECKSUM_MISMATCH,
                    f"{file.name} came twice with another {file.checksum} than announced: "
                    f"{actual}, not {file.checksum.value}; it was removed",
                )
            partial.become(file.target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise cache_full(cache, file.size_bytes - partial.num_bytes) from None
            raise

    def _fill_and_check(self, file: RemoteFile, partial: Partial) -> str:
        self.patience.persist(lambda: self._fill(file, partial))
        if file.checksum is None:
            return ""
        self.progress.checks(file.name)
        return file.checksum.of(partial.path)

    def _fill(self, file: RemoteFile, partial: Partial) -> None:
        """Asks for what is missing; raises PassingError when something still is."""
        start = partial.num_bytes
        if start > file.size_bytes or not (file.checksum or partial.validator):
            start = 0
        self.progress.has(file.name, start)
        have = start if partial.path.exists() else -1
        try:
            while have < file.size_bytes:
                have = self._ask_from(file, partial, max(have, 0))
        except PassingError as trouble:
            trouble.has_moved = partial.num_bytes > start
            raise

    def _ask_from(self, file: RemoteFile, partial: Partial, start: int) -> int:
        """One request; how much is here after it."""
        headers = {}
        if start or file.size_bytes > LARGEST_ANSWER_BYTES:
            last = start + LARGEST_ANSWER_BYTES - 1
            headers["Range"] = f"bytes={start}-{last if last < file.size_bytes else ''}"
        if start and file.checksum is None and partial.validator is not None:
            headers["If-Range"] = partial.validator
        try:
            with self.web.get(file.url, headers) as response:
                return self._receive(file, partial, response, start)
        except RefusalError as refusal:
            if refusal.status != 416 or not start:
                raise
            partial.drop()
            raise PassingError(f"{host_of(file.url)} has no more of {file.name}") from None

    def _receive(
        self, file: RemoteFile, partial: Partial, response: httpx2.Response, start: int
    ) -> int:
        span = _Span.of(response)
        if span.total is not None and span.total != file.size_bytes:
            raise _other_size(file, response, span.total)
        if span.first not in (0, start):
            raise PassingError(f"{host_of(file.url)} sent another part of {file.name}")
        if span.first == 0:
            # Also where the server knows no ranges, or has another version by now.
            partial.begin(_validator(response))
        have, end = span.first, file.size_bytes if span.end is None else span.end
        with partial.open_at(have) as out:
            for piece in response.iter_bytes():
                self.patience.check_stopped()
                out.write(piece)
                have += len(piece)
                if self.progress.has(file.name, have):
                    self.patience.note_progress()
                if have > end:
                    partial.drop()
                    break
        brought_nothing = have <= start < file.size_bytes
        if have != end or brought_nothing:
            raise PassingError(
                f"{host_of(file.url)} sent {have} of {file.size_bytes} bytes of {file.name}"
            )
        return have


@dataclass(frozen=True, slots=True)
class _Span:
    """Which bytes of the file a response holds. end, total: None where it does not tell."""

    first: int
    end: int | None
    total: int | None

    @classmethod
    def of(cls, response: httpx2.Response) -> "_Span":
        if response.status_code == 206:
            part = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            return cls(int(part[1]), int(part[2]) + 1, int(part[3])) if part else cls(0, None, None)
        # What is compressed against our wish has another length on the way than here.
        is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
        length = response.headers.get("Content-Length", "") if is_plain else ""
        total = int(length) if length.isascii() and length.isdigit() else None
        return cls(0, total, total)


def check_room(cache: Path, num_bytes: int) -> None:
    """Raises DownloadError when the disk of the cache has less room."""
    if _free_bytes(cache) < num_bytes:
        raise cache_full(cache, num_bytes)


def cache_full(cache: Path, num_bytes: int | None) -> DownloadError:
    """num_bytes: what is missing, where that is known."""
    needs = "room" if num_bytes is None else f"{_size(num_bytes)} more"
    return DownloadError(
        StartupFailure.CACHE_FULL,
        f"the download needs {needs} and {cache} has {_size(_free_bytes(cache))} left: make room, "
        "or give a larger cache (spec.model.cache.size; outside Kubernetes another folder in "
        "HF_HOME)",
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _free_bytes(cache: Path) -> int:
    existing = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _other_size(file: RemoteFile, response: httpx2.Response, total: int) -> Exception:
    sentence = (
        f"{host_of(str(response.url))} announces {total} bytes of {file.name}, and "
        f"{file.size_bytes} were announced before"
    )
    if file.validator is not None and file.validator != _validator(response):
        return DownloadError(
            StartupFailure.DOWNLOAD_FAILED, f"{sentence}: it was changed meanwhile, start again"
        )
    return PassingError(sentence)


def _validator(response: httpx2.Response) -> str | None:
    """What `If-Range` takes: a strong ETag, else a date."""
    etag: str = response.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return etag
    date: str | None = response.headers.get("Last-Modified")
    return date
