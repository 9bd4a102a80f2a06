"""Balancer pods tell one another of prompts that crash replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import msgspec
import pytest
from balancer_books import Clock
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.peers import BalancerLoad, Peer, Peers
from fastgen_balancer.quarantine import Knowledge, Quarantine
from fastgen_balancer.quarantine_share import Share, Told, read, write
from fastgen_balancer.suspicion import (
    FIRST_SENTENCE_SECONDS,
    SUSPECT_SECONDS,
    Suspicion,
    Verdict,
    blame,
)
from fastgen_balancer.web import peers_app

POISON = b"p" * 16
FORM = b"f" * 16
keys = st.binary(min_size=16, max_size=16)


@st.composite
def held(draw: st.DrawFn) -> Suspicion:
    suspicion, now = Suspicion(), 1000.0
    for _ in range(draw(st.integers(1, 4))):
        now += draw(st.floats(0, 100))
        suspicion = blame(suspicion, (draw(st.sampled_from("abcd")), now), now, draw(keys))
    return suspicion


@given(
    st.dictionaries(keys, held(), max_size=4),
    st.dictionaries(keys, st.floats(900, 1000), max_size=3),
    st.dictionaries(keys, st.floats(1502, 1504), max_size=3),
    st.dictionaries(keys, st.sampled_from("abc"), max_size=3),
    st.floats(-1e6, 1e6),
)
def test_knowledge_reads_as_it_was_written_whatever_the_other_clock_shows(
    suspicions: dict[bytes, Suspicion],
    acquitted: dict[bytes, float],
    undecided: dict[bytes, float],
    trials: dict[bytes, str],
    ahead: float,
) -> None:
    now = 1500.0
    told = write(Knowledge(suspicions, acquitted, undecided, trials), now)
    told = msgspec.json.decode(msgspec.json.encode(told), type=Told)
    found = read(told, now + ahead)
    assert found.trials == trials
    assert found.acquitted == pytest.approx({k: v + ahead for k, v in acquitted.items()})
    assert found.undecided == pytest.approx({k: v + ahead for k, v in undecided.items()})
    assert found.suspicions.keys() == suspicions.keys()
    for key, each in found.suspicions.items():
        before = suspicions[key]
        assert (each.forms, each.sentences) == (before.forms, before.sentences)
        assert sorted(name for name, _ in each.crashes) == sorted(n for n, _ in before.crashes)
        assert each.last_at == pytest.approx(before.last_at + ahead)
        if before.sentences:
            assert each.until == pytest.approx(before.until + ahead)


class Pod:
    """One balancer pod: a quarantine, and its peers' port at `10.0.0.N`."""

    def __init__(self, number: int) -> None:
        self.host = f"10.0.0.{number}"
        self.clock = Clock()
        self.clock.now += 10_000.0 * number
        self.quarantine = Quarantine(self.clock)
        self.share = Share({"chat": self.quarantine}, self.clock)
        self.is_up = True

    def knows(self, verdict: Verdict) -> Callable[[], bool]:
        return lambda: self.quarantine.verdict(POISON) is verdict

    def crash(self, request: str, *names: str) -> None:
        """A request with the poison, after which these endpoints are gone."""
        self.quarantine.sent(request, POISON, names, FORM)
        self.quarantine.ended(request, well=False)
        for name in names:
            self.quarantine.crashed(name)


async def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def pods(number: int, alone: bool = False) -> AsyncIterator[list[Pod]]:
    """That many pods that know one another; alone: the last one is not known yet."""
    made = [Pod(i) for i in range(number)]
    transports = {
        each.host: httpx2.ASGITransport(
            app=peers_app(lambda _: BalancerLoad(0, 0), lambda _: None, each.share),
            client=("10.9.9.9", 1),
        )
        for each in made
    }

    class Network(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            pod = next(each for each in made if each.host == request.url.host)
            if not pod.is_up:
                raise httpx2.ConnectError("refused")
            return await transports[request.url.host].handle_async_request(request)

    async with AsyncExitStack() as stack:
        for each in made:
            known = tuple(Peer(other.host, other.host, True) for other in made if other is not each)
            http = await stack.enter_async_context(httpx2.AsyncClient(transport=Network()))
            task = asyncio.create_task(each.share.run(Peers(http, each.host, known=known)))
            stack.callback(task.cancel)
        yield made


async def test_a_crash_at_each_of_two_pods_is_two_crashes() -> None:
    """And one that both notice is one; the sentence is the same everywhere."""
    async with pods(3) as (a, b, c):
        a.crash("r", "x")
        await eventually(b.knows(Verdict.SUSPECT))
        await eventually(c.knows(Verdict.SUSPECT))
        b.quarantine.crashed("x")
        assert b.quarantine.verdict(POISON) is Verdict.SUSPECT
        b.crash("s", "y")
        assert b.quarantine.verdict(POISON) is Verdict.CONVICTED
        await eventually(a.knows(Verdict.CONVICTED))
        await eventually(c.knows(Verdict.CONVICTED))
        for pod in (a, b, c):
            assert pod.quarantine.seconds_left(POISON) == pytest.approx(FIRST_SENTENCE_SECONDS, 0.1)


async def test_one_pods_acquittal_counts_for_all_and_lasts() -> None:
    async with pods(2) as (a, b):
        a.crash("r", "x")
        await eventually(b.knows(Verdict.SUSPECT))
        b.quarantine.sent("again", POISON, ("y",), FORM)
        await eventually(lambda: a.quarantine.trial(POISON) == "y")
        b.quarantine.answered("again", "y")
        b.quarantine.ended("again", well=True)
        b.clock.now += 2
        a.clock.now += 2
        assert b.quarantine.verdict(POISON) is Verdict.CLEAR
        await eventually(a.knows(Verdict.CLEAR))
        await b.share.heed(None)
        assert b.quarantine.verdict(POISON) is Verdict.CLEAR
        a.clock.now += 1
        a.crash("later", "z")
        await eventually(b.knows(Verdict.SUSPECT))


async def test_before_a_client_is_told_the_others_know() -> None:
    async with pods(3) as (a, b, c):
        await eventually(lambda: len(a.share._lines) == 2)
        a.quarantine.sent("r", POISON, ("x", "y"), FORM)
        a.quarantine.failed("r")
        await a.share.spread()
        for pod in (b, c):
            assert pod.quarantine.verdict(POISON) is Verdict.UNDECIDED


async def test_a_pod_that_was_away_hears_of_it_all_when_it_is_back() -> None:
    """Whether it starts, or was not heard for a while; nobody waits for it meanwhile."""
    async with pods(2) as (a, b):
        b.is_up = False
        a.crash("r", "x", "y")
        began = asyncio.get_running_loop().time()
        await a.share.spread()
        assert asyncio.get_running_loop().time() - began < 1
        assert a.quarantine.verdict(POISON) is Verdict.CONVICTED
        assert b.quarantine.verdict(POISON) is Verdict.CLEAR
        b.is_up = True
        await eventually(b.knows(Verdict.CONVICTED))


async def test_what_is_too_old_is_no_second_crash() -> None:
    async with pods(2) as (a, b):
        await eventually(lambda: bool(a.share._lines and b.share._lines))
        a.crash("r", "x")
        await eventually(b.knows(Verdict.SUSPECT))
        for pod in (a, b):
            pod.clock.now += SUSPECT_SECONDS + 1
        b.crash("s", "y")
        await eventually(a.knows(Verdict.SUSPECT))
        assert b.quarantine.verdict(POISON) is Verdict.SUSPECT


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b'{"chat": 5}', b'{"chat": {"trials": {"zz": "a"}}}',
        b'{"chat": {"undecided_seconds_left": {"%s": 1e9}}}' % (b"0" * 32),
        b'{"chat": {"acquitted_seconds_ago": {"%s": -5}}}' % (b"0" * 32),
        b'{"chat": {"held": {"%s": {"crashes": []}}}}' % (b"0" * 32),
    ],
)  # fmt: skip
async def test_what_does_not_read_changes_nothing(data: bytes) -> None:
    quarantine = Quarantine(Clock())
    share = Share({"chat": quarantine}, Clock())
    with pytest.raises(msgspec.MsgspecError):
        share._hear(Peer("b", "b", True), data)
    assert quarantine.knowledge() == Knowledge({}, {}, {}, {})
    share._hear(Peer("b", "b", True), b'{"another": {}}')


async def test_many_calls_are_few_looks() -> None:
    """So a flood of them, forged ones too, costs no more than one look at a time."""
    looks = 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.02)
        return httpx2.Response(200, json={})

    share = Share({}, Clock())
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        task = asyncio.create_task(
            share.run(Peers(http, "a", known=(Peer("b", "10.0.0.1", True),)))
        )
        await eventually(lambda: looks == 1)
        await asyncio.gather(*(share.heed("10.0.0.1") for _ in range(500)))
        assert looks <= 3
        task.cancel()
