"""The loop that works through the queue: bounded, serial per key, outliving failures."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from fastgen_operator import loop as loop_module
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.health import Metrics, Pulse
from fastgen_operator.loop import HUNG_SECONDS, Loop, relist
from fastgen_operator.queue import Key
from fastgen_operator.unsettled import RejectedError

A: Key = ("team", "a")
B: Key = ("team", "b")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def running(
    reconcile: Callable[[Key], Awaitable[None]], work: Callable[[Loop], Awaitable[None]]
) -> Metrics:
    metrics = Metrics()
    loop = Loop(reconcile, Pulse(), metrics, workers=2)
    task = asyncio.create_task(loop.run())
    try:
        await work(loop)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return metrics


async def test_workers_are_bounded_and_serial_per_key() -> None:
    active: list[Key] = []
    most = 0
    finished: list[Key] = []

    async def reconcile(key: Key) -> None:
        nonlocal most
        assert key not in active
        active.append(key)
        most = max(most, len(active))
        await asyncio.sleep(0.01)
        active.remove(key)
        finished.append(key)

    async def work(loop: Loop) -> None:
        for name in "abcde":
            loop.ask(("team", name))
        await asyncio.sleep(0.005)
        loop.ask(A)
        await until(lambda: len(finished) == 6)

    await running(reconcile, work)
    assert most == 2
    assert finished.count(A) == 2


async def test_a_failing_key_is_retried_and_stops_no_other() -> None:
    attempts: dict[Key, int] = {A: 0, B: 0}

    async def reconcile(key: Key) -> None:
        attempts[key] += 1
        if key == A and attempts[key] == 1:
            raise ClusterError(500, "not now")
        if key == A and attempts[key] == 2:
            raise ZeroDivisionError

    async def work(loop: Loop) -> None:
        loop.ask(A)
        loop.ask(B)
        await until(lambda: attempts == {A: 3, B: 1})

    metrics = await running(reconcile, work)
    sample = metrics.registry.get_sample_value
    assert sample("fastgen_operator_reconciles_total", {"outcome": "error"}) == 2
    assert sample("fastgen_operator_reconciles_total", {"outcome": "ok"}) == 2


@pytest.mark.parametrize("error", [ClusterError(422, "no"), RejectedError("no")])
async def test_a_rejection_is_tried_again_late_unless_the_wish_changes(error: Exception) -> None:
    attempts = 0

    async def reconcile(_: Key) -> None:
        nonlocal attempts
        attempts += 1
        raise error

    async def work(loop: Loop) -> None:
        loop.ask(A)
        await asyncio.sleep(0.8)
        assert attempts == 1
        loop.ask(A, changed=True)
        await until(lambda: attempts == 2)

    await running(reconcile, work)


async def test_a_namespace_on_its_way_out_is_no_failure() -> None:
    attempts = 0

    async def reconcile(_: Key) -> None:
        nonlocal attempts
        attempts += 1
        raise ClusterError(403, "unable to create new content because it is being terminated")

    async def work(loop: Loop) -> None:
        loop.ask(A)
        await asyncio.sleep(0.8)

    metrics = await running(reconcile, work)
    assert attempts == 1
    assert metrics.registry.get_sample_value("fastgen_operator_reconciles_total", {"outcome": "ok"})


async def test_the_loop_ends_its_workers_when_it_is_cancelled() -> None:
    ended = asyncio.Event()
    started = asyncio.Event()

    async def reconcile(key: Key) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def work(loop: Loop) -> None:
        loop.ask(A)
        await started.wait()

    await running(reconcile, work)
    assert ended.is_set()


async def test_a_relist_asks_for_everything() -> None:
    asked: list[tuple[Key, float]] = []

    async def keys() -> list[Key]:
        return [A, B]

    task = asyncio.create_task(relist(keys, lambda *call: asked.append(call)))
    await until(lambda: asked == [(A, 0), (B, 0)])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_later_relists_are_spread_over_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RELIST_SECONDS", 0.02)
    asked: list[float] = []

    async def keys() -> list[Key]:
        return [A, B]

    task = asyncio.create_task(relist(keys, lambda _, delay: asked.append(delay)))
    await until(lambda: len(asked) >= 6)
    task.cancel()
    assert asked[:6] == [0, 0, 0, 0.01, 0, 0.01]


async def test_a_failed_list_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RELIST_RETRY_SECONDS", 0.0)
    attempts = 0

    async def keys() -> list[Key]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ClusterError(500, "not now")
        return [A]

    asked: list[Key] = []
    task = asyncio.create_task(relist(keys, lambda key, _: asked.append(key)))
    await until(lambda: asked == [A])
    task.cancel()


async def test_a_reconcile_that_does_not_end_is_complained_about() -> None:
    now = 0.0

    async def reconcile(_: Key) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
            if now > HUNG_SECONDS + 1:
                return

    loop = Loop(reconcile, Pulse(), Metrics(), clock=lambda: now)
    task = asyncio.create_task(loop.run())
    loop.ask(A)
    await until(lambda: bool(loop._running))
    now = HUNG_SECONDS - 1
    assert loop.complaint() == ""
    now = HUNG_SECONDS + 1
    assert "team/a hangs" in loop.complaint()
    now += 1
    await until(lambda: loop.complaint() == "")
    task.cancel()


async def test_the_queue_is_a_metric() -> None:
    metrics = Metrics()
    loop = Loop(lambda _: asyncio.sleep(0), Pulse(), metrics)
    loop.ask(A)
    loop.ask(B, delay_seconds=60)
    assert metrics.registry.get_sample_value("fastgen_operator_queued_deployments") == 1
