"""Models that are one GGUF file on a web server: `https://host/path/FILE.gguf[#sha256=HEX]`."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.checksum import Checksum
from fastgen_runtime.sources.gguf_head import check_gguf_head
from fastgen_runtime.sources.hub_errors import TOKEN
from fastgen_runtime.sources.model import Model
from fastgen_runtime.sources.model_lock import model_lock
from fastgen_runtime.sources.transfer import RemoteFile, Transfer
from fastgen_runtime.sources.trouble import DownloadError, RefusalError, without_secrets

SCHEME: Final = "https://"
_FRAGMENT: Final = re.compile(r"(?:sha256=([0-9a-f]{64}))?")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class HttpsFile:
    """url: without fragment. The text of it is without query, which may hold a signature."""

    url: str
    checksum: Checksum | None

    @property
    def name(self) -> str:
        """The file's own name, as far as every file system takes it."""
        last = unquote(urlsplit(self.url).path).rpartition("/")[2]
        return _UNFIT.sub("_", last)[-_LONGEST_NAME:].lstrip(".")

    @property
    def folder(self) -> Path:
        """Where it lies, below the cache of such files; another URL or checksum, another folder."""
        sha256 = self.checksum.value if self.checksum else ""
        key = hashlib.sha256(f"{self.url}#{sha256}".encode()).hexdigest()[:16]
        host = urlsplit(self.url).hostname or ""
        return Path(_UNFIT.sub("_", host)) / key

    def __str__(self) -> str:
        return without_secrets(self.url, None)


def parse_https_source(source: str) -> HttpsFile:
    """Reads the source; raises DownloadError."""
    url, _, fragment = source.partition("#")
    match = _FRAGMENT.fullmatch(fragment)
    shown = without_secrets(url, None)
    try:
        parts = urlsplit(url)
        is_file = bool(parts.hostname) and parts.path.endswith(".gguf") and parts.port != 0
    except ValueError:
        is_file = False
    if not is_file:
        raise DownloadError(
            StartupFailure.MODEL_UNSUPPORTED,
            f"{shown} names no GGUF file: give https://host/path/FILE.gguf, or hf://owner/name "
            "for models of several files",
        )
    if "@" in parts.netloc:
        raise DownloadError(
            StartupFailure.CONFIG_INVALID,
            f"{shown} holds a user or a password: remove it, and give a token in {TOKEN}",
        )
    if match is None:
        raise DownloadError(
            StartupFailure.CONFIG_INVALID,
            f"{shown}: what follows # must be sha256= and 64 hexadecimal digits in lower case",
        )
    return HttpsFile(url, Checksum("sha256", match[1]) if match[1] else None)


def deliver_https(
    file: HttpsFile, cache: Path, transfer: Transfer, *, has_token: bool, resolve_only: bool
) -> Model:
    """The file in the cache, downloaded where it is not there yet.

    Whether it is a GGUF file of an architecture that we know is checked before the rest of it is
    fetched. Raises ModelError and OSError.
    """
    target = cache / file.folder / file.name
    if not target.exists():
        try:
            head = transfer.head(file.url, file.name)
            check_gguf_head(head.data, file.name)
            transfer.progress.resolved(None, target, head.size_bytes)
            if resolve_only:
                return Model(None, target, head.size_bytes)
            wanted = RemoteFile(
                file.url, file.name, head.size_bytes, target, file.checksum, head.validator
            )
            with model_lock(target.parent / ".lock", transfer.progress.waits_for_another):
                if not target.exists():
                    transfer.bring([wanted], cache)
        except RefusalError as refusal:
            raise _explain(refusal, file, has_token) from None
    size_bytes = target.stat().st_size
    transfer.progress.resolved(None, target, size_bytes)
    transfer.progress.has(file.name, size_bytes)
    return Model(None, target, size_bytes)


def _explain(refusal: RefusalError, file: HttpsFile, has_token: bool) -> DownloadError:
    if refusal.status in (401, 403):
        return DownloadError(
            StartupFailure.ACCESS_DENIED,
            f"{file} answers {refusal.status}: "
            + (
                f"the token of {TOKEN} may not read it" if has_token else f"give a token in {TOKEN}"
            ),
        )
    return DownloadError(
        StartupFailure.MODEL_NOT_FOUND, f"{file} answers {refusal.status}: check the address"
    )
