"""Runs reconciles from the queue, and asks for all of them now and then."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.health import Metrics, Pulse
from fastgen_operator.queue import Key, WorkQueue
from fastgen_operator.unsettled import RejectedError, UnsettledError

TICK_SECONDS: Final = 5.0
RELIST_SECONDS: Final = 60.0
"""A lost watch only adds delay."""
RELIST_RETRY_SECONDS: Final = 5.0
RECONCILE_LIMIT_SECONDS: Final = 120.0
HUNG_SECONDS: Final = RECONCILE_LIMIT_SECONDS + 30.0
"""A reconcile that lasts longer does not heed its own limit."""
WORKERS: Final = 8
REJECTED_SECONDS: Final = 30.0
"""The same request is refused again unless somebody else changes something, such as a quota."""

log = logging.getLogger(__name__)


class Loop:
    """Bounded workers over a WorkQueue."""

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        pulse: Pulse,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        workers: int = WORKERS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._reconcile = reconcile
        self._pulse = pulse
        self._metrics = metrics
        self._clock = clock
        self._workers = workers
        self._queue = WorkQueue(jitter)
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._began: dict[Key, float] = {}
        metrics.queued.set_function(lambda: self._queue.due(self._clock()))

    def ask(self, key: Key, delay_seconds: float = 0.0, *, changed: bool = False) -> None:
        """Asks for a reconcile; a short delay lets a burst of events become one.

        `changed`: what is declared is new, so earlier failures say nothing about it.
        """
        if changed:
            self._queue.forgive(key)
        self._queue.add(key, self._clock() + delay_seconds)
        self._wake.set()

    def complaint(self) -> str:
        """The reconcile that hangs; empty: none."""
        now = self._clock()
        hung = [key for key, began in self._began.items() if now - began > HUNG_SECONDS]
        return f"the reconcile of {'/'.join(hung[0])} hangs" if hung else ""

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            while True:
                self._pulse.tick()
                self._wake.clear()
                while len(self._running) < self._workers:
                    key = self._queue.take(self._clock())
                    if key is None:
                        break
                    self._start(key)
                await self._wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, key: Key) -> None:
        task = asyncio.create_task(self._work(key), name=f"reconcile {key}")
        self._running.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        # Only now is the worker free: a wake from within the task would come too early.
        self._running.discard(task)
        self._wake.set()

    async def _wait(self) -> None:
        is_full = len(self._running) >= self._workers
        due = None if is_full else self._queue.seconds_to_next(self._clock())
        try:
            async with asyncio.timeout(TICK_SECONDS if due is None else min(due, TICK_SECONDS)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _work(self, key: Key) -> None:
        started = self._began[key] = self._clock()
        outcome = "error"
        try:
            async with asyncio.timeout(RECONCILE_LIMIT_SECONDS):
                again = await self._reconcile(key)
            outcome = "ok"
            self._queue.done(key)
            if again is not None:
                self.ask(key, again)
        except (ClusterError, UnsettledError, TimeoutError) as error:
            if isinstance(error, ClusterError) and error.is_namespace_terminating:
                outcome = "ok"
                self._queue.done(key)
            else:
                wait = REJECTED_SECONDS if _is_rejection(error) else 0.0
                self._retry(key, str(error) or type(error).__name__, None, wait)
        except Exception as error:  # A resource that trips us must not stop the others.
            self._retry(key, str(error), error)
        finally:
            del self._began[key]
            self._metrics.reconciles.labels(outcome).inc()
            self._metrics.seconds.observe(self._clock() - started)

    def _retry(
        self, key: Key, why: str, error: Exception | None, at_least_seconds: float = 0.0
    ) -> None:
        delay = self._queue.failed(key, self._clock(), at_least_seconds)
        log.warning(
            "reconcile failed",
            extra={"key": key, "why": why, "retry_seconds": delay},
            exc_info=error,
        )


def _is_rejection(error: Exception) -> bool:
    return isinstance(error, RejectedError) or (
        isinstance(error, ClusterError) and error.is_rejection
    )


async def relist(
    keys: Callable[[], Awaitable[Sequence[Key]]], ask: Callable[[Key, float], None]
) -> None:
    """Asks for every FastGenDeployment at once, then over each RELIST_SECONDS, evenly."""
    spread = 0.0
    while True:
        try:
            found = await keys()
        except ClusterError as error:
            log.warning("relist failed", extra={"why": str(error)})
            await asyncio.sleep(RELIST_RETRY_SECONDS)
            continue
        for position, key in enumerate(found):
            ask(key, spread * position / len(found))
        await asyncio.sleep(RELIST_SECONDS)
        spread = RELIST_SECONDS
