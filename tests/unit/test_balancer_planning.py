"""How many replicas are planned: for a surge, and for a replica that is lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_scenes import POLICY, decide, fleet, knowing, local, metrics, reading
from scaling_strategies import quick

from fastgen_balancer.behavior import Change
from fastgen_balancer.decision import Memory, start
from fastgen_balancer.demand import demand_of, surge
from fastgen_balancer.recollection import LOST_SECONDS, observe
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import Signals

NOW = 10_000.0
PLAIN = replace(POLICY, headroom=0.9, down_margin=0.9)


def test_far_more_requests_than_before_are_a_surge_and_chance_is_none() -> None:
    seen = replace(fleet(3, 1.8), arriving_requests=4.0)
    assert surge(seen, seen.replicas) is None  # not known
    assert surge(replace(seen, latest_requests=5.0), seen.replicas) is None
    assert surge(replace(seen, latest_requests=7.0), seen.replicas) == 7.0
    assert surge(replace(seen, latest_requests=0.0), seen.replicas) is None
    # As many more are no chance where there are many.
    many = replace(seen, arriving_requests=100.0, latest_requests=103.0)
    assert surge(many, many.replicas) is None


def test_a_new_replica_that_takes_what_others_held_is_no_surge() -> None:
    seen = metrics([reading("old", 1.0), reading("new", 0.5, whole_window=False)])
    seen = replace(seen, arriving_requests=4.0, latest_requests=40.0)
    assert surge(seen, seen.replicas) is None


def test_a_surge_counts_at_once_with_the_backlog_that_it_will_be() -> None:
    seen = replace(fleet(3, 1.8), arriving_requests=2.0)
    calm = demand_of(seen, seen.replicas, 0.9, 60.0, carried=3.0)
    risen = demand_of(replace(seen, latest_requests=8.0), seen.replicas, 0.9, 60.0, carried=3.0)
    assert calm is not None
    assert risen is not None
    assert (calm.arriving, calm.growth) == (pytest.approx(1.8), 0.0)
    assert (risen.arriving, risen.growth) == (pytest.approx(7.2), pytest.approx(4.2))


def test_a_surge_counts_by_the_balancers_word_before_prometheus_knows() -> None:
    seen = replace(fleet(3, 1.8), arriving_requests=2.0)
    risen = demand_of(seen, seen.replicas, 0.9, 60.0, carried=3.0, influx=8.0)
    later = replace(seen, latest_requests=8.0)
    assert risen == demand_of(later, seen.replicas, 0.9, 60.0, carried=3.0)
    assert risen is not None
    assert risen.requests == 8.0


@quick
@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0.01, 1e3))
def test_a_surge_never_lowers_a_demand(latest: float, mean: float, each: float) -> None:
    seen = replace(fleet(3, 1.8), arriving_requests=mean)
    before = demand_of(seen, seen.replicas, each, 60.0, carried=3.0)
    after = demand_of(replace(seen, latest_requests=latest), seen.replicas, each, 60.0, carried=3.0)
    assert before is not None
    assert after is not None
    assert after.total >= before.total


def _seen(memory: Memory, replicas: int, ready: int, now: float) -> Memory:
    return observe(Signals(replicas, local(ready), fleet(max(1, ready), 1.0)), PLAIN, memory, now)


def test_a_replica_that_is_lost_is_remembered_and_one_that_is_let_go_is_not() -> None:
    memory = _seen(start(4, NOW), 4, 4, NOW)
    assert _seen(memory, 3, 3, NOW + 2).lost_at is None
    assert _seen(memory, 6, 4, NOW + 2).lost_at is None
    lost = _seen(memory, 4, 3, NOW + 2)
    assert lost.lost_at == NOW + 2
    back = _seen(lost, 4, 4, NOW + 20)
    assert back.lost_at == NOW + 2
    # Seen all the time: a gap would move it.
    late = replace(back, at=NOW + 3 + LOST_SECONDS)
    assert _seen(late, 4, 4, NOW + 4 + LOST_SECONDS).lost_at is None


@pytest.mark.parametrize("demand", [0.5, 1.7, 3.5])
def test_one_replica_more_is_held_after_a_loss(demand: float) -> None:
    policy: Policy = replace(PLAIN, max_replicas=20)
    counts = []
    for lost_at in (None, NOW - 100):
        memory = replace(knowing(), lost_at=lost_at, at=NOW - 2)
        for replicas in (1, 8):
            seen = replace(fleet(replicas, demand), arriving_requests=100.0)
            signals = Signals(replicas, local(replicas), seen)
            counts.append(decide(signals, policy, memory, NOW).replicas)
    up, down, safe_up, safe_down = counts
    assert safe_up == max(up, 1) + 1
    assert safe_down == down + 1
    assert safe_up <= safe_down


def test_changes_of_the_number_are_no_loss_while_pods_drain() -> None:
    memory = replace(_seen(start(4, NOW), 4, 4, NOW), changes=(Change(NOW, -2),))
    memory = _seen(memory, 2, 4, NOW + 2)
    assert _seen(memory, 2, 2, NOW + 4).lost_at is None
