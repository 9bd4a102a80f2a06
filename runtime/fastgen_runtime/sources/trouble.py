"""What can go wrong between a download and its servers, in words that hold no secret."""

import re
from typing import Final
from urllib.parse import urlsplit

from fastgen_runtime.startup_error import ModelError

_QUERY: Final = re.compile(r"(https?://[^\s?#'\"]+)[?#][^\s'\"]*")
_USER: Final = re.compile(r"(https?://)[^\s/@]+@")


class DownloadError(ModelError):
    """The model cannot be had; the text says what to do. It never holds a token."""


class PassingError(Exception):
    """What may pass by itself: the same request can succeed later.

    retry_after_seconds: how long the server asks to wait. has_moved: bytes came before it.
    """

    def __init__(self, sentence: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_seconds = retry_after_seconds
        self.has_moved = False


class UnreachedError(PassingError):
    """The server did not answer at all."""


class RefusalError(Exception):
    """An answer that no repetition changes. code: the hub's `X-Error-Code`, else empty."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(str(status))
        self.status = status
        self.code = code


def host_of(url: str) -> str:
    """Host, and port where it is no usual one."""
    return urlsplit(url).netloc.rpartition("@")[2]


def without_secrets(text: str, token: str | None) -> str:
    """The text without the token and without the queries of URLs, which may sign a request.

    A token in a URL may be there in lower case, as a host is, and with characters as `%41`.
    """
    text = _USER.sub(r"\1", _QUERY.sub(r"\1", text))
    return _written(token).sub("[HF_TOKEN]", text) if token else text


def _written(token: str) -> re.Pattern[str]:
    """All ways to write a token in a URL."""
    return re.compile("".join(map(_character, token)), re.IGNORECASE)


def _character(character: str) -> str:
    encoded = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    return f"(?:{re.escape(character)}|{encoded})"
