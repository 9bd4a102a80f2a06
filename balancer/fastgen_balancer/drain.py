"""Lets the open streams end before the balancer does.

Whoever reaches the port may ask for it: the kubelet does so for each container, from an address of
the node's that nothing tells from others. So a drain after which nobody ends the process was asked
for in error, or worse, and is undone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import httpx2

from fastgen_balancer.envoy_admin import EnvoyAdmin

POLL_SECONDS: Final = 0.2
ABANDONED_SECONDS: Final = 15.0
"""After a drain, until it is undone; the kubelet ends a container as soon as its hook returns."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Drain:
    """The drain, begun by whoever asks first and awaited by all."""

    def __init__(
        self,
        admin: EnvoyAdmin,
        settle_seconds: Callable[[], float],
        limit_seconds: Callable[[], float],
    ) -> None:
        self._admin = admin
        self._settle_seconds = settle_seconds
        self._limit_seconds = limit_seconds
        self._task: asyncio.Task[bool] | None = None
        self._open_requests: int | None = None
        self._ended = asyncio.Event()
        self._is_last = False

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def run(self, *, is_last: bool = False) -> bool:
        """Drains; returns whether every stream ended in time. A second caller joins the first.

        is_last: the process ends after it.
        """
        self._is_last = self._is_last or is_last
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="drain")
            self._task.add_done_callback(lambda _: self._ended.set())
        return await asyncio.shield(self._task)

    async def undo_abandoned(self) -> None:
        """Serves again after each drain that nothing followed, until it is cancelled."""
        while True:
            await self._ended.wait()
            await asyncio.sleep(ABANDONED_SECONDS)
            if self._is_last:
                return
            log.warning("nobody has ended this process after its drain: it serves again")
            await self.restart_envoy()
            self._ended.clear()
            self._task = None

    async def restart_envoy(self) -> None:
        """Has Envoy end when its streams have: closed listeners do not open again."""
        with contextlib.suppress(httpx2.HTTPError):
            with contextlib.suppress(TimeoutError):
                await self.wait_for_streams()
            await self._admin.quit()

    async def wait_for_streams(self) -> None:
        """Waits until no request is open; raises TimeoutError at the limit.

        Raises httpx2.ConnectError when Envoy is gone.
        """
        async with asyncio.timeout(self._limit_seconds()):
            await self._streams_end()

    async def _drain(self) -> bool:
        log.info("drain begins")
        settle_seconds = self._settle_seconds()
        try:
            async with asyncio.timeout(settle_seconds + self._limit_seconds()):
                await self._insist(self._admin.fail_health)
                # Until kube-proxy everywhere knows, new connections still come, and are served.
                await asyncio.sleep(settle_seconds)
                await self._insist(self._admin.close_listeners)
                await self._streams_end()
        except httpx2.ConnectError as error:
            log.warning("drain ends: Envoy is gone", extra={"error": repr(error)})
            return True
        except TimeoutError:
            log.warning("drain ends at its limit", extra={"open_requests": self._open_requests})
            return False
        log.info("drain ends")
        return True

    async def _streams_end(self) -> None:
        while (left := await self._insist(self._admin.active_requests)) > 0:
            self._open_requests = left
            await asyncio.sleep(POLL_SECONDS)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asks until Envoy answers: a busy one is late, and its streams must not end for that.

        Raises httpx2.ConnectError when nobody listens, twice in a row: Envoy is gone.
        """
        nobody_listened = False
        while True:
            try:
                return await ask()
            except httpx2.ConnectError:
                if nobody_listened:
                    raise
                nobody_listened = True
            except httpx2.HTTPError as error:
                nobody_listened = False
                log.info("Envoy does not answer yet", extra={"error": repr(error)})
            await asyncio.sleep(POLL_SECONDS)
