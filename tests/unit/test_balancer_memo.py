"""What a leader remembers reaches the next one, by a few writes."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_server import lease_server
from lightkube import ApiError
from scaling_scenes import IDLE, POLICY, UNREACHABLE, fleet, local
from scaling_strategies import memories

from fastgen_api.names import DECIDED_ANNOTATION, MEMO_ANNOTATION
from fastgen_api.spec import ScalingMode, parse
from fastgen_balancer import term
from fastgen_balancer.behavior import Change, Wished
from fastgen_balancer.capacity import Capacity, Seen
from fastgen_balancer.decision import Blocker, Memory, Rule, start
from fastgen_balancer.deployment_access import Deployment
from fastgen_balancer.deployment_status import ReportMemory
from fastgen_balancer.lease import TIMING, Leadership, Move
from fastgen_balancer.memo import (
    BUSY_SECONDS,
    QUIET_SECONDS,
    Memo,
    is_due,
    read,
    recall,
    write,
)
from fastgen_balancer.memo_store import MemoStore
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import Signals

NOW = 1_700_000_000.0


def deployment(replicas: int, mode: str = "Auto", **status: Any) -> Deployment:
    spec = {
        "model": {"source": "file:///m"},
        "replicas": replicas,
        "scaling": {"mode": mode, "maxReplicas": 8},
    }
    return Deployment("uid", "1", 1, False, parse(spec), status)


@settings(max_examples=60)
@given(memories)
def test_a_memory_reads_as_it_was_written(memory: Memory) -> None:
    memo = Memo(ScalingMode.AUTO, memory)
    assert read(write(memo)) == memo


def test_what_does_not_read_is_no_memory() -> None:
    for text in ("", "{", "{}", '{"mode":"Auto","memory":{"wishes":5}}', '{"mode":"New"}'):
        assert read(text) is None
    told = {"time": "2023-11-14T22:13:20Z", "replicas": 3}
    state = term.begin(deployment(3, lastDecision=told), "{", NOW + 50)
    assert state.memory == start(3, NOW + 50, NOW)


def test_a_memo_stays_small_whatever_happens() -> None:
    memory, replicas = start(4, NOW), 4
    for i in range(4000):
        now = NOW + 2.0 * i
        busy = fleet(replicas, 3.0 if i % 7 < 3 else 0.2 * (i % 5), running=float(i % 60))
        signals = Signals(replicas, local(replicas), busy if i % 11 else UNREACHABLE)
        policy = replace(POLICY, capacity_key=f"key-{i // 100}")
        _, memory = recommend(signals, policy, memory, now)
        # Others scale it, all the time.
        replicas = 1 + (i // 3) % 8
    assert len(write(Memo(ScalingMode.AUTO, memory))) < 8000


def test_a_window_goes_on_under_the_next_leader() -> None:
    """As long as if there had been one leader all the time, and no longer."""
    state = term.State(start(4, NOW), ReportMemory(), ScalingMode.AUTO)
    decision, memory = recommend(Signals(4, local(4), fleet(4, 3.3)), POLICY, state.memory, NOW)
    for second in range(5, 500, 5):
        now = NOW + second
        if second % 50 == 0:  # a new leader, some seconds later
            memo = write(Memo(ScalingMode.AUTO, memory))
            memory = term.begin(deployment(4), memo, now).memory
        decision, memory = recommend(Signals(4, local(4), IDLE), POLICY, memory, now)
        if decision.replicas < 4:
            break
    assert (second, decision.rule) == (300, Rule.DEMAND_FITS_FEWER)


def test_the_next_leader_counts_what_the_last_one_did_after_its_last_renewal() -> None:
    memory = replace(start(4, NOW), at=NOW)
    state = term.begin(deployment(6), write(Memo(ScalingMode.AUTO, memory)), NOW + 16)
    _, after = recommend(Signals(6, local(6), UNREACHABLE), POLICY, state.memory, NOW + 16)
    assert after.changes == (Change(NOW + 16, 2),)


def test_pending_replicas_time_out_under_whichever_leader() -> None:
    hungry = Signals(2, local(1, queued=50, in_flight=4, saturated=1), UNREACHABLE)
    memory, seen = replace(start(2, NOW), pending_since=NOW), []
    for second in range(5, 700, 5):
        memo = write(Memo(ScalingMode.AUTO, memory))
        memory = term.begin(deployment(2), memo, NOW + second).memory
        decision, memory = recommend(hungry, POLICY, memory, NOW + second)
        seen.append(decision.blockers)
    assert seen[100] == (Blocker.PENDING_REPLICAS,)
    assert seen[-1] == (Blocker.STUCK_REPLICAS,)


def test_another_mode_keeps_what_is_known_and_begins_its_windows_anew() -> None:
    known = Capacity(Seen(0.7, NOW), None)
    memory = replace(start(1, NOW), capacity=known, capacity_key="k", reversals=3)
    memo = write(Memo(ScalingMode.RECOMMEND, memory))
    found = term.begin(deployment(4), memo, NOW + 9).memory
    assert (found.capacity, found.capacity_key, found.reversals) == (known, "k", 3)
    assert [wish.replicas for wish in found.wishes] == [4]


def contender(client: Any, name: str, now: list[float]) -> tuple[Leadership, MemoStore]:
    leadership = Leadership(client, "team", "chat-balancer", name, clock=lambda: now[0])
    return leadership, MemoStore(client, "team", "chat-balancer-memo", name)


async def test_the_leases_renewals_carry_no_memory() -> None:
    async with lease_server() as (server, client):
        now = [0.0]
        (first, store), (second, other) = contender(client, "a", now), contender(client, "b", now)
        assert await first.step() is Move.ACQUIRE
        assert await store.take() == ""
        await store.leave("one")
        first.decided_at = 5.0
        assert await second.step() is Move.WAIT
        writes = server.writes
        assert await first.step() is Move.RENEW
        assert server.writes == writes + 1
        lease = server.leases["chat-balancer"]
        assert lease["metadata"]["annotations"] == {DECIDED_ANNOTATION: "5.000"}
        # Killed: the other one waits for the lease's end, and knows all that was left.
        await second.step()
        now[0] += TIMING.duration
        assert await second.step() is Move.ACQUIRE
        assert await other.take() == "one"
        assert second.decided_at == 5.0
        # The first one, should it live, neither leads nor overwrites what the second one says.
        await store.leave("late")
        await store.leave("later")
        await other.leave("two")
        memo = server.leases["chat-balancer-memo"]
        assert memo["metadata"]["annotations"] == {MEMO_ANNOTATION: "two"}
        assert memo["spec"]["holderIdentity"] == "b"
        await first.step()
        assert not first.leads
        assert (first.terms, second.terms) == (1, 1)


async def test_a_leader_that_stops_leaves_its_latest_memo_before_it_gives_the_lease_back() -> None:
    async with lease_server() as (server, client):
        now = [0.0]
        (first, store), (second, other) = contender(client, "a", now), contender(client, "b", now)
        await first.step()
        await store.take()
        holders = []

        async def leave() -> None:
            holders.append(server.leases["chat-balancer"]["spec"]["holderIdentity"])
            await store.leave("latest")

        first.before_release = leave
        await first.release()
        assert holders == ["a"]
        now[0] += 2.0
        assert await second.step() is Move.ACQUIRE
        assert await other.take() == "latest"
        await other.leave("newer")
        await second.release()
        # One that leads again takes the other's word, not its own old one.
        await first.step()
        assert first.terms == 2
        assert await store.take() == "newer"


async def test_an_answer_that_was_lost_costs_one_write_and_not_the_store() -> None:
    """The API server has done it, and the leader does not know its version."""
    async with lease_server() as (server, client):
        store = MemoStore(client, "team", "memo", "a")
        await store.take()
        known = store._lease
        await store.leave("one")
        store._lease = known
        with pytest.raises(ApiError):
            await store.leave("two")
        await store.leave("three")
        annotations = server.leases["memo"]["metadata"]["annotations"]
        assert annotations == {MEMO_ANNOTATION: "three"}


async def test_the_memory_of_an_earlier_version_leaves_the_lease() -> None:
    async with lease_server() as (server, client):
        first, _ = contender(client, "a", [0.0])
        await first.step()
        server.leases["chat-balancer"]["metadata"]["annotations"] = {
            MEMO_ANNOTATION: "old",
            "x": "y",
        }
        await first.step()
        assert server.leases["chat-balancer"]["metadata"]["annotations"] == {"x": "y"}


@given(memories, st.integers(0, 120), st.integers(-100, 100))
def test_when_the_memory_is_due(memory: Memory, passed: int, jump: int) -> None:
    left = Memo(ScalingMode.AUTO, memory)
    older = msgspec.structs.replace(left, memory=replace(memory, at=NOW + passed, samples=()))
    seconds = BUSY_SECONDS if memory.idle_since is None else QUIET_SECONDS
    assert is_due(left, NOW, older, NOW + passed) == (passed >= seconds)
    assert is_due(left, NOW, older, NOW - 1 - abs(jump)), "a clock that was put back"
    assert is_due(None, NOW, older, NOW)
    changed = msgspec.structs.replace(
        left, memory=replace(memory, decided=(memory.decided or 0) + 1)
    )
    assert is_due(left, NOW, changed, NOW)
    assert is_due(left, NOW, msgspec.structs.replace(left, mode=ScalingMode.RECOMMEND), NOW)


def test_a_memory_is_as_old_as_the_last_decision_that_was_told() -> None:
    memory = replace(start(1, NOW), at=NOW, known_at=NOW, idle_since=NOW - 300)
    memo = Memo(ScalingMode.AUTO, memory)
    assert recall(memo, None) == memory
    assert recall(memo, NOW - 5) == memory
    later = recall(memo, NOW + 55)
    assert (later.at, later.known_at) == (NOW + 55, NOW + 55)
    busy = Memo(ScalingMode.AUTO, replace(memory, idle_since=None))
    assert recall(busy, NOW + 8).known_at == NOW


def test_a_wish_that_was_repeated_counts_from_its_last_time() -> None:
    """The memo is as old as the wish's first time: another one would have been written at once."""
    wishes = (Wished(NOW - 90, 5), Wished(NOW - 20, 4))
    memo = Memo(ScalingMode.AUTO, replace(start(4, NOW), at=NOW - 20, wishes=wishes))
    assert recall(memo, NOW - 4).wishes == (Wished(NOW - 90, 5), Wished(NOW - 4, 4))
    none = Memo(ScalingMode.AUTO, replace(start(4, NOW), at=NOW - 20, wishes=()))
    assert recall(none, NOW - 4).wishes == ()
