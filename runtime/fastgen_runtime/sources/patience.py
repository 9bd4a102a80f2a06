"""How long a download waits for its servers, and when it asks them again."""

import math
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.trouble import DownloadError, PassingError, UnreachedError

_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 60.0
_LONGEST_SPREAD_SECONDS: Final = 10.0
_RATE_LIMIT: Final = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
"""`RateLimit: "api";r=0;t=55`: nothing remains, and 55 s later something does."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a download bears.

    stall_seconds: longest silence of a connection. patience_seconds: longest time without a new
    byte, waits included. contact_seconds: the same while no server has answered at all.
    """

    stall_seconds: float = 30
    patience_seconds: float = 1800
    contact_seconds: float = 1800


def limits_from(environment: Mapping[str, str], default: Limits) -> Limits:
    """The limits that the environment sets, else the default ones; raises DownloadError."""
    stall = _seconds(environment, "FASTGEN_DOWNLOAD_STALL_SECONDS", default.stall_seconds)
    patience = _seconds(environment, "FASTGEN_DOWNLOAD_PATIENCE_SECONDS", default.patience_seconds)
    return Limits(stall, patience, min(patience, default.contact_seconds))


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DownloadError(
            StartupFailure.CONFIG_INVALID, f"{name} is {text!r}; it must be a number of seconds"
        )
    return seconds


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """How long a refusing server asks to wait.

    headers: by names in lower case. now: for servers that give a date and do not tell theirs.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    if moment := _date(text):
        return max(0.0, (moment - (_date(headers.get("date", "")) or now)).total_seconds())
    limit = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def wait_seconds(attempt: int, retry_after: float | None, draw: float) -> float:
    """How long to wait after the attempt (from 1) that failed; draw: random, from 0 to 1.

    A server's own wish is exceeded a little: whoever it told the same shall not return at once.
    """
    if retry_after is not None:
        return retry_after + draw * min(1.0 + retry_after / 10, _LONGEST_SPREAD_SECONDS)
    longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(attempt - 1, 10))
    return longest * (0.5 + draw / 2)


class StoppedError(Exception):
    """Another connection of the same download has failed for good."""


class Patience:
    """When the requests of one download may be sent; shared by its connections.

    A server's wish to wait holds for all of them, and bytes on one renew the patience of all.
    """

    def __init__(
        self,
        limits: Limits,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._tell = tell
        self._clock = clock
        self._stopped = threading.Event()
        self._pause = pause or self._sleep
        self._draw = draw
        self._moved_at = clock()
        self._not_before = 0.0
        self._has_contact = False

    def note_progress(self) -> None:
        """A server answered as it should, or new bytes came."""
        self._has_contact = True
        self._moved_at = self._clock()

    def stop(self) -> None:
        """Ends all waits with StoppedError, and those to come."""
        self._stopped.set()

    def check_stopped(self) -> None:
        """Raises StoppedError after `stop`."""
        if self._stopped.is_set():
            raise StoppedError

    def persist(self, attempt: Callable[[], _T]) -> _T:
        """What the attempt returns, made again after each PassingError for as long as is bearable.

        Raises DownloadError, and what else the attempt raises.
        """
        attempts = 0
        while True:
            if (left := self._not_before - self._clock()) > 0:
                self._pause(left)
            self.check_stopped()
            try:
                return attempt()
            except PassingError as trouble:
                attempts = 1 if trouble.has_moved else attempts + 1
                self._wait_after(trouble, attempts)

    def _wait_after(self, trouble: PassingError, attempts: int) -> None:
        self._has_contact |= not isinstance(trouble, UnreachedError)
        retry_after = trouble.retry_after_seconds
        seconds = wait_seconds(attempts, retry_after, self._draw())
        limits = self._limits
        bearable = limits.patience_seconds if self._has_contact else limits.contact_seconds
        now = self._clock()
        if now + seconds > self._moved_at + bearable:
            why = f"and nothing has come for {now - self._moved_at:.0f} s"
            if retry_after is not None and retry_after > bearable:
                why = f"and it asks to wait for {retry_after:.0f} s"
            raise DownloadError(
                StartupFailure.DOWNLOAD_FAILED,
                f"{trouble}, {why}, of {bearable:.0f} s that are borne "
                "(FASTGEN_DOWNLOAD_PATIENCE_SECONDS): what has come is kept, start again later",
            ) from None
        if retry_after is not None:
            self._not_before = max(self._not_before, now + seconds)
        self._tell(f"{trouble}: again in {math.ceil(seconds)} s")
        self._pause(seconds)

    def _sleep(self, seconds: float) -> None:
        self._stopped.wait(seconds)
