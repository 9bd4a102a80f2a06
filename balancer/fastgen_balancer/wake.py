"""Wakes the leader for a request that waits for a first replica, in whichever pod either is."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import httpx2

LEAST_PAUSE_SECONDS: Final = 0.25
"""Between two decisions, however often the leader is woken."""
QUIET_SECONDS: Final = 1.0
"""Between two calls of one pod: the leader looks by itself every few seconds."""
ANSWER_SECONDS: Final = 2.0

log = logging.getLogger(__name__)


def leader_pod(holder_identity: str | None) -> str | None:
    """The pod of a lease's holder, `POD_RANDOM`; None: nobody holds it."""
    pod, _, _ = (holder_identity or "").partition("_")
    return pod or None


class Alarm:
    """Cuts the pause between two decisions short."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Ends the present pause, or the next one."""
        self._rung.set()

    async def pause(self, seconds: float) -> None:
        """Lasts until somebody rings, at most `seconds` and at least LEAST_PAUSE_SECONDS."""
        least = min(LEAST_PAUSE_SECONDS, seconds)
        await asyncio.sleep(least)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await self._rung.wait()
        self._rung.clear()


class Waker:
    """Tells the leader that a request waits here; calls that come close together are one.

    A call that is lost, or that finds no leader, only costs time: a leader asks all pods for their
    queues at every decision, its first one included.
    """

    def __init__(
        self,
        own: str,
        ring: Callable[[], None],
        holder: Callable[[], Awaitable[str | None]],
        call: Callable[[str], Awaitable[None]],
    ) -> None:
        """`own`: this pod's name; `ring`: wakes a leader in this process; `holder`: who leads.

        `call` wakes the pod of that name. Both may raise httpx2.HTTPError, as lightkube's errors.
        """
        self._own = own
        self._ring = ring
        self._holder = holder
        self._call = call
        self._asked = asyncio.Event()

    def wake(self) -> None:
        """Asks for it; returns at once."""
        self._asked.set()

    async def run(self) -> None:
        """Passes the calls on until it is cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._pass_on()
            except (httpx2.HTTPError, TimeoutError) as error:
                log.info("the leader was not woken", extra={"error": repr(error)[:300]})
            await asyncio.sleep(QUIET_SECONDS)

    async def _pass_on(self) -> None:
        pod = leader_pod(await self._holder())
        if pod == self._own:
            self._ring()
        elif pod is not None:
            await self._call(pod)
        log.info("a request waits for a first replica", extra={"leader": pod or "none"})
