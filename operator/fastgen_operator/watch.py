"""Keeps a shelf equal to what the API server holds: lists, then watches from there, for ever."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from enum import StrEnum
from typing import Final

import httpx2
import msgspec
from lightkube.core.selector import build_selector

from fastgen_api.nesting import shallow
from fastgen_api.spec import KubernetesObject
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError, failure_of
from fastgen_operator.health import WATCH_LIMIT_SECONDS
from fastgen_operator.kinds import OUR_LABELS, is_labelled, path_of
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.queue import Key
from fastgen_operator.shelf import HistoryError, Shelf

SERVER_SECONDS: Final = 240
"""After about this the API server ends a watch; the next one begins where it ended."""
OPEN_SECONDS: Final = 20.0
"""How long a watch may take to begin."""
SPREAD: Final = 0.2
"""Watches that began together end apart."""
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 15.0
ABSENT_PAUSE_SECONDS: Final = 20.0
"""How often is asked for a kind that the cluster does not serve."""
STEADY_SECONDS: Final = 5.0
"""A watch that ends earlier has failed: an API server that is going down ends all at once."""
FAILURES_TO_LIST: Final = 3
"""After so many failures in a row the version may be what is wrong."""

log = logging.getLogger(__name__)


class Ending(StrEnum):
    """Why a watch ended; the label `reason` of its metric."""

    EXPECTED = "expected"
    SILENT = "silent"
    BROKEN = "broken"
    FAILED = "failed"
    """The API server says that it cannot."""
    EXPIRED = "expired"
    """The version it would go on from is no longer known."""
    REFUSED = "refused"
    ABSENT = "absent"


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_status: Final = msgspec.json.Decoder(_Status).decode
_decode_object: Final = msgspec.json.Decoder(dict).decode


def ending_of(error: ClusterError) -> Ending:
    """What the end of a watch, or of the list before it, is called."""
    if error.code == 0:
        is_silent = isinstance(error.__cause__, (TimeoutError, httpx2.ReadTimeout))
        return Ending.SILENT if is_silent else Ending.BROKEN
    if error.code == 404:
        return Ending.ABSENT
    if error.code in (401, 403):
        return Ending.REFUSED
    is_passing = error.code == 429 or error.code >= 500
    return Ending.FAILED if is_passing else Ending.EXPIRED


def pause_seconds(failures: int, jitter: float) -> float:
    """How long to wait after so many failures in a row; `jitter` is from 0 to 1."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + 0.5 * jitter)


class Watch:
    """Follows the objects of one shelf.

    `ask` is called for each FastGenDeployment about which there is news, `served` when the kind
    came or went, `ended` with each end of a watch.
    """

    def __init__(
        self,
        shelf: Shelf,
        cluster: Cluster,
        http: httpx2.AsyncClient,
        *,
        ask: Callable[[Key], None],
        served: Callable[[], None],
        ended: Callable[[str, Ending], None],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.shelf = shelf
        self._cluster = cluster
        self._http = http
        self._ask = ask
        self._served = served
        self._ended = ended
        self._clock = clock
        self._jitter = jitter
        self._failures = 0
        self._must_list = True
        self._listing = asyncio.Lock()
        self._began: float | None = None
        """Since when events may come; None: they may not."""
        self.heard = clock()
        """When the API server last said anything here, a refusal included."""
        self.refusal = ""
        """Why the API server does not let us list; empty: it does, or has not answered."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known what there is, or that it cannot be known."""
        return self.shelf.is_filled or not self.shelf.is_served or bool(self.refusal)

    def complaint(self, now: float) -> str:
        """That it has been silent for too long; empty: it has not."""
        silent = now - self.heard
        if silent < WATCH_LIMIT_SECONDS:
            return ""
        return f"the watch of {self.shelf.kind} has been silent for {silent:.0f} s"

    async def run(self) -> None:
        """Follows until it is cancelled."""
        while True:
            try:
                self._began = None
                if self._must_list:
                    await self._list()
                await self._stream()
                self._end(Ending.EXPECTED if self._is_steady() else Ending.BROKEN, "ended at once")
            except ClusterError as error:
                self._end(ending_of(error), str(error))
            except HistoryError as error:
                self._end(Ending.EXPIRED, str(error))
            # The decoders and the layers below the client raise their own: whatever it was, a fresh
            # list is the answer.
            except Exception as error:
                log.exception("watch failed", extra=self._where())
                self._end(Ending.EXPIRED, repr(error))
            await asyncio.sleep(self._pause_seconds())

    async def relist(self) -> None:
        """Lists beside the watch, should that have missed something.

        Raises ClusterError, and HistoryError as Cluster.fill does.
        """
        # What is deleted meanwhile is noted for one list at a time.
        async with self._listing:
            async for key in self._cluster.fill(self.shelf):
                self._ask(key)

    async def _list(self) -> None:
        await self.relist()
        self._hear()
        self._must_list = False
        self.refusal = ""
        if not self.shelf.is_served:
            self.shelf.is_served = True
            log.info("the cluster serves a kind", extra=self._where())
            self._served()

    async def _stream(self) -> None:
        """Takes events until the API server ends the watch."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self.shelf.version),
            "timeoutSeconds": str(int(SERVER_SECONDS * (1 - SPREAD * self._jitter()))),
        }
        if is_labelled(self.shelf.kind):
            params["labelSelector"] = build_selector(OUR_LABELS)
        path = path_of(self.shelf.kind, self.shelf.scope)
        request = self._http.build_request("GET", path, params=params)
        try:
            # The client's own limit is that of the silence between two events.
            async with asyncio.timeout(OPEN_SECONDS):
                response = await self._http.send(request, stream=True)
            async with aclosing(response):
                self._hear()
                if response.is_error:
                    await response.aread()
                    raise ClusterError(response.status_code, _words_of(response))
                self._began = self._clock()
                async for line in lines(response.aiter_bytes()):
                    self._hear()
                    self._take(_decode_event(shallow(line)))
        except httpx2.HTTPError as error:
            raise failure_of(error) from error
        except TimeoutError as error:
            raise ClusterError(0, f"no answer within {OPEN_SECONDS:.0f} s") from error

    def _take(self, event: _Event) -> None:
        if event.type == "ERROR":
            status = _decode_status(event.object)
            raise ClusterError(status.code, status.message)
        self._failures = 0
        found: KubernetesObject = _decode_object(event.object)
        try:
            if event.type == "DELETED":
                self._ask_all(self.shelf.remove(found))
            elif event.type in ("ADDED", "MODIFIED"):
                self._ask_all(self.shelf.put(found))
            self.shelf.reach(found["metadata"]["resourceVersion"])
        except Exception:  # One odd object must not keep us from hearing of the others.
            log.exception("an object was skipped", extra=self._where() | name_of(found))

    def _end(self, ending: Ending, why: str) -> None:
        self._ended(self.shelf.kind, ending)
        if self._is_steady():
            self._failures = 0
        if ending is Ending.EXPECTED:
            return
        if ending in (Ending.ABSENT, Ending.REFUSED, Ending.EXPIRED):
            self._hear()
            self._must_list = True
        if ending is Ending.ABSENT or (
            ending is Ending.REFUSED and self.shelf.kind in MONITORING_KINDS
        ):
            self._vanish()
            return
        self._failures += 1
        if ending is Ending.FAILED and self._failures % FAILURES_TO_LIST == 0:
            self._must_list = True
        if ending is Ending.REFUSED:
            self.refusal = why
        # An API server that has seen nothing of a kind since it started sends no bookmarks.
        level = logging.INFO if ending is Ending.SILENT else logging.WARNING
        log.log(level, "watch ended", extra={**self._where(), "why": why[:300]})

    def _is_steady(self) -> bool:
        return self._began is not None and self._clock() - self._began >= STEADY_SECONDS

    def _vanish(self) -> None:
        """The cluster does not serve the kind, so there is nothing of it."""
        if self.shelf.is_served:
            self.shelf.is_served = False
            log.info("the cluster does not serve a kind", extra=self._where())
            self._ask_all(self.shelf.clear())
            self._served()

    def _pause_seconds(self) -> float:
        if not self.shelf.is_served:
            return ABSENT_PAUSE_SECONDS
        return pause_seconds(self._failures, self._jitter()) if self._failures else 0.0

    def _ask_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._ask(key)

    def _hear(self) -> None:
        self.heard = self._clock()

    def _where(self) -> dict[str, str]:
        return {"kind": self.shelf.kind, "scope": self.shelf.scope}


def name_of(found: KubernetesObject) -> dict[str, str]:
    """Namespace and name of an object that may lack them, for the log."""
    metadata = found.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return {"object": f"{known.get('namespace', '?')}/{known.get('name', '?')}"}


def _words_of(refusal: httpx2.Response) -> str:
    try:
        return _decode_status(refusal.content).message
    except msgspec.DecodeError:  # Of a proxy on the way.
        return refusal.text


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream; what comes after the last line's end is dropped.

    Bytes, not text: text has line ends, such as U+0085, that JSON strings may contain.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
