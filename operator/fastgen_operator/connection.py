"""Connections to the API server: at a bounded rate, obeying its `Retry-After`, counted."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from fastgen_api.nesting import shallow

REQUESTS_PER_SECOND: Final = 100.0
BURST_REQUESTS: Final = 100
ATTEMPTS: Final = 3
"""So often a request is sent that fails in passing."""
PASSING: Final = frozenset({429, 500, 502, 503, 504})
REPEATABLE: Final = frozenset({"GET", "PATCH", "DELETE"})
"""Sent twice they do what they do once: every PATCH of ours is a server-side apply."""
BROKEN: Final = (httpx2.NetworkError, httpx2.RemoteProtocolError)
"""A connection that nobody used for a while may be closed just when we take it."""
FIRST_WAIT_SECONDS: Final = 0.3
BUSY_SECONDS: Final = 1.0
"""The wait after 429 where the answer names none."""
LONGEST_WAIT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
REQUEST_CONNECTIONS: Final = 16
OF_THE_BODY: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class Pace:
    """When the next request may go. Time is an argument; nothing here waits.

    Invariants: at most `burst` requests go at once and `per_second` in the long run; none goes
    before the end of a `pause`.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._interval = 1.0 / per_second
        self._tolerance = (burst - 1) * self._interval
        self._next = float("-inf")
        """When the next request would go in an even stream."""

    def wait_seconds(self, now: float) -> float:
        """Takes a turn; returns how long to wait for it."""
        turn = max(self._next, now)
        self._next = turn + self._interval
        return max(0.0, turn - self._tolerance - now)

    def pause(self, until: float) -> None:
        """Nobody goes before this time, and not all at once after it."""
        self._next = max(self._next, until + self._tolerance)


class Gate(httpx2.AsyncBaseTransport):
    """Sends requests when it is their turn, and again those that fail in passing."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        pace: Pace,
        count: Callable[[str, int], None],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._pace = pace
        self._count = count
        self._clock = clock
        self._jitter = jitter

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, after ATTEMPTS whatever it is. Raises what the inner transport raises."""
        for attempt in range(1, ATTEMPTS):
            try:
                response = await self._send(request)
            except BROKEN:
                if request.method not in REPEATABLE:
                    raise
            else:
                if not self._is_worth_repeating(request, response):
                    return response
                await response.aclose()
            await asyncio.sleep(FIRST_WAIT_SECONDS * 2 ** (attempt - 1) * (0.5 + self._jitter()))
        return await self._send(request)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()

    def _is_worth_repeating(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        # What gets 429 was not done at all.
        return response.status_code in PASSING and (
            request.method in REPEATABLE or response.status_code == httpx2.codes.TOO_MANY_REQUESTS
        )

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(self._pace.wait_seconds(self._clock()))
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError:
            self._count(request.method, 0)
            raise
        self._count(request.method, response.status_code)
        if wait := wait_seconds(response):
            self._pace.pause(self._clock() + wait)
        # Proxies on the way answer without one; lightkube reads it from every refusal.
        response.headers.setdefault("Content-Type", "text/plain")
        return response


class Shallow(httpx2.AsyncBaseTransport):
    """Reads answers whole; what is nested too deeply for the client's decoder is cut."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer. Raises what the inner transport raises."""
        response = await self._inner.handle_async_request(request)
        response.request = request
        text = await response.aread()
        await response.aclose()
        # The body is not compressed here.
        told = [each for each in response.headers.multi_items() if each[0] not in OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=told, content=shallow(text))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()


def wait_seconds(response: httpx2.Response) -> float:
    """How long the API server wants to be left alone by all of us; it says so in whole seconds."""
    text = response.headers.get("Retry-After", "")
    is_busy = response.status_code == httpx2.codes.TOO_MANY_REQUESTS
    seconds = float(text) if text.isdecimal() else BUSY_SECONDS * is_busy
    return min(seconds, LONGEST_WAIT_SECONDS)


@dataclass(frozen=True, slots=True)
class Connection:
    """Two clients that share one pace: watches hold their connections for as long as they last."""

    requests: AsyncClient
    watches: httpx2.AsyncClient

    async def close(self) -> None:
        """Closes the connections of both."""
        await self.requests.close()
        await self.watches.aclose()


def connect(
    count: Callable[[str, int], None], silence_seconds: float, config: SingleConfig | None = None
) -> Connection:
    """Connects as the environment says: as a pod's ServiceAccount, or by KUBECONFIG.

    `count` is called with method and status of each answer; status 0: none. A watch that is silent
    for `silence_seconds` has timed out. Raises lightkube.ConfigError.
    """
    config = config or KubeConfig.from_env().get()
    if config is None:
        raise ConfigError("no configuration: set KUBECONFIG, or run in a pod of the cluster")
    pace = Pace(REQUESTS_PER_SECOND, BURST_REQUESTS)
    verify = verify_cluster(config.cluster, config.user or User(), config.abs_file)

    def gate(connections: int | None) -> Gate:
        limits = httpx2.Limits(max_connections=connections)
        return Gate(httpx2.AsyncHTTPTransport(verify=verify, limits=limits), pace, count)

    return Connection(
        AsyncClient(
            config,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=ANSWER_SECONDS, pool=None),
            transport=Shallow(gate(REQUEST_CONNECTIONS)),
        ),
        httpx2.AsyncClient(
            base_url=config.cluster.server,
            auth=user_auth(config.user),
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=silence_seconds, pool=None),
            transport=gate(None),
        ),
    )
