"""What decisions remember: clocks that jump, numbers that flap, nodes that are full."""

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_scenes import IDLE, POLICY, UNREACHABLE, decide, fleet, knowing, local
from scaling_strategies import memories, policies, quick, signals

from fastgen_api.spec import ScalingRules, parse
from fastgen_balancer.behavior import Change
from fastgen_balancer.capacity import Capacity, Seen
from fastgen_balancer.decision import Blocker, Memory, Rule, start
from fastgen_balancer.recollection import MOST_CAPACITIES, turns
from fastgen_balancer.recommend import recommend
from fastgen_balancer.scaling_policy import Policy, capacity_key, policy_of
from fastgen_balancer.signals import MetricSignals, Signals

NOW = 10_000.0
jumps = st.lists(st.tuples(st.integers(0, 100), st.floats(-1e7, 1e7)), min_size=1, max_size=5).map(
    dict
)


@settings(max_examples=60)
@given(jumps)
def test_no_jump_of_the_clock_ends_a_window(jumped: dict[int, float]) -> None:
    """59 ticks of 5 s are no 300 s, whatever the clock says of them."""
    memory, now = start(4, NOW), NOW
    _, memory = recommend(Signals(4, local(4), fleet(4, 3.3)), POLICY, memory, now)
    for tick in range(50):
        now += 5.0 + jumped.get(tick, 0.0)
        decision, memory = recommend(Signals(4, local(4), IDLE), POLICY, memory, now)
        # A gap counts as 30 s at most, of which there are five at most.
        assert decision.replicas == 4 or tick >= 59 - 6 * len(jumped)
    for _ in range(70):
        now += 5.0
        decision, memory = recommend(Signals(4, local(4), IDLE), POLICY, memory, now)
    assert decision.replicas == 1


@settings(max_examples=60)
@given(jumps)
def test_no_jump_of_the_clock_changes_a_steady_number(jumped: dict[int, float]) -> None:
    memory, now = replace(knowing(), at=NOW), NOW
    for tick in range(120):
        now += 5.0 + jumped.get(tick, 0.0)
        steady = Signals(4, local(4, in_flight=40), fleet(4, 3.0, running=10.0))
        decision, memory = recommend(steady, POLICY, memory, now)
        assert decision.replicas == 4


@quick
@given(signals, policies, memories, st.floats(-1e9, 1e9))
def test_any_time_is_borne(signals: Signals, policy: Policy, memory: Memory, jump: float) -> None:
    decision, after = recommend(signals, policy, memory, NOW + jump)
    assert policy.min_replicas <= decision.replicas <= policy.max_replicas
    assert after.at == NOW + jump


@quick
@given(signals, policies, memories, st.randoms())
def test_the_order_of_replicas_says_nothing(
    signals: Signals, policy: Policy, memory: Memory, random: Random
) -> None:
    if not isinstance(signals.metrics, MetricSignals):
        return
    readings = list(signals.metrics.replicas)
    random.shuffle(readings)
    other = replace(signals, metrics=replace(signals.metrics, replicas=tuple(readings)))
    first, second = (recommend(each, policy, memory, NOW)[0] for each in (signals, other))
    # Sums of floats may differ in their last digits, and so the text.
    assert (first.replicas, first.rule, first.blockers) == (
        second.replicas,
        second.rule,
        second.blockers,
    )


@pytest.mark.parametrize("order", list(permutations((0, 1, 2, 3))))
def test_pods_may_come_in_any_order_and_go_back(order: tuple[int, ...]) -> None:
    """Ready counts in any order while four are wanted: nothing more is asked for, nor less."""
    capacity = knowing().capacity
    memory, now = replace(start(4, NOW), at=NOW, capacity=capacity), NOW
    for ready in (*order, *reversed(order), 4, 4):
        now += 10.0
        seen = fleet(ready, 0.8 * ready) if ready else UNREACHABLE
        many = Signals(4, local(ready, in_flight=10 * ready), seen)
        decision, memory = recommend(many, POLICY, memory, now)
        assert decision.replicas == 4


BLOCKED = Signals(4, local(2, queued=80, in_flight=40, saturated=2), UNREACHABLE, True)


def test_no_more_is_asked_for_where_no_node_takes_it() -> None:
    for pending_since in (NOW - 1, NOW - 5000):
        memory = replace(start(4, NOW), pending_since=pending_since)
        decision, _ = recommend(BLOCKED, POLICY, memory, NOW)
        assert (decision.replicas, decision.blockers) == (4, (Blocker.CAPACITY_BLOCKED,))
        assert "no node takes 2 of 4" in decision.message


def test_what_arrives_is_asked_for_though_no_node_takes_it_yet() -> None:
    """Whoever adds nodes adds them for pods that wait."""
    memory = replace(start(4, NOW), pending_since=NOW - 100)
    seen = fleet(2, 2.0)
    much = replace(BLOCKED, metrics=replace(seen, arriving=5.0))
    decision, _ = recommend(much, POLICY, memory, NOW)
    assert (decision.replicas, decision.blockers) == (6, ())
    enough = replace(BLOCKED, metrics=replace(seen, arriving=3.0))
    decision, _ = recommend(enough, POLICY, memory, NOW)
    assert (decision.replicas, decision.blockers) == (4, (Blocker.CAPACITY_BLOCKED,))


def test_what_no_node_takes_may_go() -> None:
    quiet = Signals(4, local(2), replace(IDLE, replicas=IDLE.replicas[:2]), True)
    assert decide(quiet).replicas == 1


def test_where_all_are_ready_a_blocked_rollout_blocks_nothing() -> None:
    ready = replace(BLOCKED, replicas=2)
    assert decide(ready).replicas > 2


def test_a_tolerance_lets_the_demand_stray() -> None:
    over = Signals(2, local(2, in_flight=8), fleet(2, 1.8))
    assert decide(over).replicas == 3
    strict = decide(over, policy=replace(POLICY, up_tolerance=0.05))
    loose = decide(over, policy=replace(POLICY, up_tolerance=0.1))
    assert (strict.replicas, strict.rule) == (3, Rule.DEMAND_ABOVE_CAPACITY)
    assert (loose.replicas, loose.rule, loose.blockers) == (2, Rule.STEADY, (Blocker.TOLERANCE,))
    under = Signals(4, local(4, in_flight=8), fleet(4, 1.3))
    assert decide(under, memory=knowing()).replicas == 2
    kept = decide(under, policy=replace(POLICY, down_tolerance=0.7), memory=knowing())
    assert (kept.replicas, kept.blockers) == (4, (Blocker.TOLERANCE,))


def test_a_tolerance_is_a_quantity() -> None:
    behavior = {"scaleUp": {"tolerance": "50m"}, "scaleDown": {"tolerance": 0}}
    spec = parse({"model": {"source": "file:///m"}, "scaling": {"behavior": behavior}})
    policy = policy_of(spec, None)
    assert (policy.up_tolerance, policy.down_tolerance) == (0.05, 0.0)


@pytest.mark.parametrize(
    ("named", "cold_start", "seconds"),
    [
        (None, None, 300),
        (None, 10.0, 180),
        (None, 60.0, 180),
        (None, 80.0, 240),
        (None, 600.0, 300),
        (0, 600.0, 0),
        (3600, 10.0, 3600),
    ],
)
def test_replicas_stay_as_long_as_they_take_to_come_back(
    named: int | None, cold_start: float | None, seconds: int
) -> None:
    rules = {} if named is None else {"stabilizationWindowSeconds": named}
    behavior = {"scaleDown": {"selectPolicy": "Min", "tolerance": "0.2"} | rules}
    spec = parse({"model": {"source": "file:///m"}, "scaling": {"behavior": behavior}})
    policy = policy_of(spec, cold_start)
    down = policy.scale_down
    assert down.stabilization_window_seconds == seconds
    assert (down.select_policy, policy.down_tolerance) == ("Min", 0.2)
    assert [(p.type, p.value, p.period_seconds) for p in down.policies] == [("Percent", 100, 15)]


@pytest.mark.parametrize(
    ("deltas", "count"),
    [((), 0), ((1, 2), 0), ((1, -1), 1), ((1, -1, -1, 2), 2), ((1, None, -1), 1), ((-1, 0, 1), 1)],
)
def test_turns_are_counted(deltas: tuple[int | None, ...], count: int) -> None:
    changes = tuple(Change(float(at), delta) for at, delta in enumerate(deltas))
    assert turns(changes, -1.0) == count


@pytest.mark.parametrize(
    ("turned", "seconds"), [(0, 300), (1, 300), (2, 600), (3, 1200), (9, 1200)]
)
def test_a_number_that_flaps_waits_longer(turned: int, seconds: int) -> None:
    changes = tuple(Change(NOW - 100 + i, 1 if i % 2 else -1) for i in range(turned + 1))
    memory = replace(start(4, NOW), changes=changes, at=NOW)
    blockers = set()
    for second in range(5, 2000, 5):
        quiet = Signals(4, local(4), IDLE)
        decision, memory = recommend(quiet, POLICY, memory, NOW + second)
        blockers.update(decision.blockers)
        if decision.replicas < 4:
            break
    assert second == seconds
    assert (Blocker.FLAPPING in blockers) == (seconds > 300)


def test_without_a_window_nothing_is_damped() -> None:
    changes = tuple(Change(NOW - 100 + i, 1 if i % 2 else -1) for i in range(9))
    policy = replace(POLICY, scale_down=ScalingRules(stabilization_window_seconds=0))
    memory = replace(start(4, NOW), changes=changes, at=NOW)
    decision, _ = recommend(Signals(4, local(4), IDLE), policy, memory, NOW + 5)
    assert Blocker.FLAPPING not in decision.blockers


def test_reversals_are_counted_once() -> None:
    memory, total = start(1, NOW), []
    for tick, replicas in enumerate((1, 2, 2, 3, 2, 2, 2, 4, 1)):
        quiet = Signals(replicas, local(replicas), UNREACHABLE)
        _, memory = recommend(quiet, POLICY, memory, NOW + 5.0 * tick)
        total.append(memory.reversals)
    assert total == [0, 0, 0, 0, 1, 1, 1, 2, 3]


def test_what_was_learned_comes_back_with_the_configuration() -> None:
    known = Capacity(Seen(0.4, NOW), Seen(0.4, NOW))
    memory = Memory(capacity=known, capacity_key="a")
    quiet = Signals(1, local(1), UNREACHABLE)
    for key in ("b", "c", "a"):
        _, memory = recommend(quiet, replace(POLICY, capacity_key=key), memory, NOW)
        assert (memory.capacity == known) is (key == "a")
    for number in range(50):
        memory = replace(memory, capacity=known)
        _, memory = recommend(quiet, replace(POLICY, capacity_key=str(number)), memory, NOW)
    assert len(memory.capacities) == MOST_CAPACITIES


def test_a_key_stands_for_what_changes_a_replicas_capacity() -> None:
    spec = {"model": {"source": "file:///m"}, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    same = [{"replicas": 3}, {"balancer": {"replicas": 5}}, {"scaling": {"maxReplicas": 9}}]
    other = [
        {"model": {"source": "file:///n"}},
        {"engine": {"maxConcurrentRequests": 8}},
        {"resources": {"limits": {"nvidia.com/gpu": "2"}}},
        {"nodeSelector": {"gpu": "h100"}},
        {"slo": {"timePerOutputToken": {"milliseconds": 20}}},
        {"image": "runtime:2"},
    ]
    key = capacity_key(parse(spec))
    assert {capacity_key(parse(spec | each)) for each in same} == {key}
    assert len({key, *(capacity_key(parse(spec | each)) for each in other)}) == 7


def test_a_demand_at_which_the_slo_was_missed_is_kept_away_from() -> None:
    bursty = Capacity(Seen(1.0, NOW), None, missed=Seen(0.5, NOW - 3600))
    calm = Signals(4, local(4, in_flight=8), fleet(4, 1.5))
    known = replace(knowing(), capacity=bursty)
    # 1.5 / 3 would be what was missed at; 0.8 of that at most: four stay.
    assert decide(calm, memory=known).replicas == 4
    light = Signals(4, local(4, in_flight=8), fleet(4, 1.1))
    assert decide(light, memory=known).replicas == 3
    long_ago = replace(bursty, missed=Seen(0.5, NOW - 7201))
    assert decide(calm, memory=replace(known, capacity=long_ago)).replicas == 3
