"""A request that waits for a first replica wakes whoever leads."""

import asyncio
import time

import httpx2
import pytest

from fastgen_balancer import wake
from fastgen_balancer.wake import Alarm, Waker, leader_pod


@pytest.mark.parametrize(
    ("identity", "pod"),
    [
        (None, None),
        ("", None),
        ("chat-balancer-5d4-x9_1a2b3c4d", "chat-balancer-5d4-x9"),
        ("chat-balancer-5d4-x9", "chat-balancer-5d4-x9"),
    ],
)
def test_the_leaders_pod_is_in_the_lease(identity: str | None, pod: str | None) -> None:
    assert leader_pod(identity) == pod


async def seconds_of(pause: object) -> float:
    began = time.monotonic()
    await pause
    return time.monotonic() - began


async def test_a_pause_lasts_as_long_as_it_is_told() -> None:
    assert 0.4 <= await seconds_of(Alarm().pause(0.4)) < 2


async def test_an_alarm_ends_the_pause_and_is_over_with_it() -> None:
    alarm = Alarm()
    asyncio.get_running_loop().call_later(0.35, alarm.ring)
    assert 0.3 <= await seconds_of(alarm.pause(30)) < 5
    assert await seconds_of(alarm.pause(0.4)) >= 0.4


async def test_an_alarm_between_two_pauses_is_not_lost() -> None:
    alarm = Alarm()
    alarm.ring()
    assert await seconds_of(alarm.pause(30)) < 5


async def test_however_often_it_rings_decisions_keep_their_distance() -> None:
    alarm = Alarm()

    async def ring_on() -> None:
        while True:
            alarm.ring()
            await asyncio.sleep(0)

    ringing = asyncio.create_task(ring_on())
    assert await seconds_of(alarm.pause(30)) >= wake.LEAST_PAUSE_SECONDS
    ringing.cancel()


class Scene:
    """A waker, and what it does; each answer of the lease may be an error."""

    def __init__(self, *holders: str | Exception | None) -> None:
        self.holders = list(holders)
        self.rung = 0
        self.called: list[str] = []
        self.broken = False
        self.waker = Waker("own", self._ring, self._holder, self._call)

    def _ring(self) -> None:
        self.rung += 1

    async def _holder(self) -> str | None:
        found = self.holders.pop(0) if len(self.holders) > 1 else self.holders[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def _call(self, pod: str) -> None:
        self.called.append(pod)
        if self.broken:
            raise httpx2.ConnectError("refused")

    async def live(self, seconds: float, every: float) -> None:
        """Requests begin to wait again and again."""
        task = asyncio.create_task(self.waker.run())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.waker.wake()
            await asyncio.sleep(every)
        assert not task.done()
        task.cancel()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "QUIET_SECONDS", 0.2)


async def test_a_leader_elsewhere_is_called() -> None:
    scene = Scene("other_1a2b")
    await scene.live(0.1, 0.01)
    assert (scene.called, scene.rung) == (["other"], 0)


async def test_a_leader_in_this_pod_needs_no_call() -> None:
    scene = Scene("own_1a2b")
    await scene.live(0.1, 0.01)
    assert (scene.called, scene.rung) == ([], 1)


async def test_many_requests_are_few_calls() -> None:
    scene = Scene("other_1a2b")
    await scene.live(1.0, 0.001)
    assert 2 <= len(scene.called) <= 6


async def test_without_requests_nobody_is_called() -> None:
    scene = Scene("other_1a2b")
    task = asyncio.create_task(scene.waker.run())
    await asyncio.sleep(0.3)
    task.cancel()
    assert scene.called == []


async def test_without_a_leader_or_the_api_server_it_goes_on() -> None:
    scene = Scene(None, httpx2.ConnectError("refused"), TimeoutError(), "other_1a2b")
    scene.broken = True
    await scene.live(1.6, 0.01)
    assert len(scene.called) >= 2
    assert set(scene.called) == {"other"}
