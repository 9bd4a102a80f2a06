"""Lets the open streams end before the balancer does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import httpx2

from fastgen_balancer.envoy_admin import EnvoyAdmin

POLL_SECONDS: Final = 0.2

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

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def run(self) -> bool:
        """Drains; returns whether every stream ended in time. A second caller joins the first."""
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="drain")
        return await asyncio.shield(self._task)

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
