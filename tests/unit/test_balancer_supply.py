"""How long replicas take to come where nodes must come first."""

from dataclasses import replace

import pytest
from scaling_scenes import POLICY, fleet, local

from fastgen_balancer.decision import Memory, start
from fastgen_balancer.recollection import observe
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import Signals
from fastgen_balancer.supply import (
    KEPT_SECONDS,
    LONGEST_SECONDS,
    UNKNOWN_SECONDS,
    Waiting,
    moved,
    supply_seconds,
)

COLD = 60.0


@pytest.mark.parametrize(
    ("waiting", "seconds"),
    [
        (Waiting(), COLD),
        (Waiting(since=990.0), UNKNOWN_SECONDS),
        (Waiting(since=600.0), 400.0),
        (Waiting(since=990.0, took=120.0, took_at=900.0), 120.0),
        (Waiting(since=990.0, took=20.0, took_at=900.0), COLD),
        (Waiting(since=-5000.0), LONGEST_SECONDS),
        (Waiting(took=360.0, took_at=900.0), 360.0),
        (Waiting(since=800.0, took=360.0, took_at=900.0), 360.0),
        (Waiting(took=360.0, took_at=999.0 - KEPT_SECONDS), COLD),
    ],
)
def test_no_less_than_it_was_seen_to_take(waiting: Waiting, seconds: float) -> None:
    assert supply_seconds(waiting, COLD, 1000.0) == seconds


def _live(moments: list[tuple[float, int, int, bool]]) -> Memory:
    """moments: time, replicas, ready ones, whether no node takes the others."""
    memory = start(moments[0][1], moments[0][0])
    for now, replicas, ready, blocked in moments:
        signals = Signals(replicas, local(ready), fleet(max(1, ready), 1.0), blocked)
        memory = observe(signals, POLICY, memory, now)
    return memory


def _ticks(begin: int, end: int, *rest: object) -> list[tuple[float, int, int, bool]]:
    return [(float(now), *rest) for now in range(begin, end, 2)]


def test_a_wait_for_a_node_is_counted_to_the_readiness() -> None:
    moments = [
        *_ticks(0, 10, 4, 4, False),
        *_ticks(10, 310, 5, 4, True),
        *_ticks(310, 370, 5, 4, False),
        *_ticks(370, 380, 5, 5, False),
    ]
    assert _live(moments[:-5]).waiting == Waiting(since=10.0)
    assert _live(moments).waiting == Waiting(None, took=360.0, took_at=370.0)
    together = [*moments[:-5], *_ticks(370, 374, 6, 5, False), *_ticks(374, 380, 6, 6, False)]
    assert _live(together).waiting == Waiting(None, took=360.0, took_at=370.0)


def test_a_cold_start_alone_is_no_wait_and_one_that_is_let_go_tells_nothing() -> None:
    assert _live([*_ticks(0, 60, 5, 4, False), *_ticks(60, 70, 5, 5, False)]).waiting == Waiting()
    given_up = [*_ticks(0, 100, 5, 4, True), *_ticks(100, 110, 4, 4, False)]
    assert _live(given_up).waiting == Waiting()


def test_a_clock_that_jumps_moves_it() -> None:
    assert moved(Waiting(5.0, 3.0, 7.0), 10.0) == Waiting(15.0, 3.0, 17.0)
    assert moved(Waiting(), 10.0).since is None


def test_what_rises_is_asked_for_as_early_as_nodes_come() -> None:
    """The same rise, without and with nodes that were seen to take long."""
    policy, counts = replace(POLICY, lead_seconds=COLD), []
    for waiting in (Waiting(), Waiting(took=360.0, took_at=0.0)):
        memory = Memory(replicas=4, waiting=waiting)
        for index in range(150):
            now, demand = 2.0 * index, 1.5 + 0.008 * index
            signals = Signals(4, local(4), fleet(4, demand))
            decision, memory = recommend(signals, policy, memory, now)
        counts.append(decision.replicas)
    assert counts[0] < counts[1]
