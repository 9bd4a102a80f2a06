"""Lets the open streams end before the balancer does."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import httpx2

from fastgen_balancer.envoy_admin import EnvoyAdmin

POLL_SECONDS: Final = 0.2

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

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def run(self) -> bool:
        """Drains; returns whether every stream ended in time. A second caller joins the first."""
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="drain")
        return await asyncio.shield(self._task)

    async def _drain(self) -> bool:
        log.info("drain begins")
        try:
            await self._admin.fail_health()
            # Until kube-proxy everywhere knows, new connections still come, and are served.
            await asyncio.sleep(self._settle_seconds())
            await self._admin.close_listeners()
            left = await self.wait_for_streams()
        except httpx2.HTTPError as error:
            log.warning("drain ends: Envoy does not answer", extra={"error": repr(error)})
            return True
        log.info("drain ends", extra={"open_requests": left})
        return left == 0

    async def wait_for_streams(self) -> int:
        """Returns how many requests are still open when they should have ended."""
        left = await self._admin.active_requests()
        try:
            async with asyncio.timeout(self._limit_seconds()):
                while left > 0:
                    await asyncio.sleep(POLL_SECONDS)
                    left = await self._admin.active_requests()
        except TimeoutError:
            pass
        return left
