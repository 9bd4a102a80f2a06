"""What holds for every decision, and for a whole day of them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_api.names import Outcome
from fastgen_api.spec import ScalingPolicy, ScalingRules
from fastgen_balancer.behavior import Change, Wished
from fastgen_balancer.capacity import Capacity, Seen
from fastgen_balancer.decision import Memory, Rule, start
from fastgen_balancer.recommend import recommend
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import (
    LocalSignals,
    MetricSignals,
    Outcomes,
    ReplicaReading,
    Signals,
    Unknown,
)

NOW = 10_000.0
quick = settings(max_examples=60, deadline=None)
maybe = st.none() | st.floats(0, 1e6)
counts = st.integers(0, 1000)
readings = st.builds(
    ReplicaReading,
    instance=st.just("r"),
    age_seconds=st.floats(0, 60),
    whole_window=st.booleans(),
    tokens_per_second=maybe,
    running=maybe,
    running_floor=maybe,
    waiting=maybe,
    waiting_floor=maybe,
    waiting_growth=st.none() | st.floats(-100, 100),
    owed=maybe,
    owed_floor=maybe,
    kv_usage=st.none() | st.floats(0, 1),
    kv_usage_floor=st.none() | st.floats(0, 1),
)
outcomes = st.builds(
    Outcomes,
    counts=st.dictionaries(st.sampled_from(Outcome), st.floats(0, 1e4)),
    window_seconds=st.sampled_from([30.0, 300.0]),
)
known = st.builds(
    MetricSignals,
    replicas=st.lists(readings, max_size=5).map(tuple),
    tokens_per_second=maybe,
    queued_requests=maybe,
    queue_growth=st.none() | st.floats(-100, 100),
    short=st.none() | outcomes,
    long=st.none() | outcomes,
)
unknown = st.just(Unknown("QueryFailed", "no answer"))
local = st.builds(LocalSignals, counts, counts, st.integers(0, 12), st.integers(0, 12))
signals = st.builds(Signals, replicas=st.integers(0, 12), local=local, metrics=known | unknown)
rules = st.builds(
    ScalingRules,
    stabilization_window_seconds=st.sampled_from([0, 60, 300]),
    policies=st.lists(
        st.builds(
            ScalingPolicy,
            type=st.sampled_from(["Pods", "Percent"]),
            value=st.integers(1, 200),
            period_seconds=st.integers(1, 1800),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    select_policy=st.sampled_from(["Max", "Min", "Disabled"]),
)
policies = st.builds(
    lambda low, more, up, down, ratio: Policy(low, low + more, up, down, ratio),
    st.integers(1, 4),
    st.integers(0, 8),
    rules,
    rules,
    st.none() | st.floats(0.5, 1),
)
seen = st.none() | st.builds(Seen, st.floats(0, 1e6), st.floats(0, NOW))
memories = st.builds(
    Memory,
    capacity=st.builds(Capacity, seen, seen),
    wishes=st.lists(st.builds(Wished, st.floats(NOW - 400, NOW), st.integers(0, 12))).map(tuple),
    changes=st.lists(
        st.builds(Change, st.floats(NOW - 400, NOW), st.none() | st.integers(-4, 4))
    ).map(tuple),
    replicas=st.none() | st.integers(0, 12),
    pending_since=st.none() | st.floats(NOW - 1000, NOW),
    queued_since=st.none() | st.floats(NOW - 100, NOW),
    saturated_since=st.none() | st.floats(NOW - 100, NOW),
    missed_since=st.none() | st.floats(NOW - 100, NOW),
    known_at=st.none() | st.floats(NOW - 100, NOW),
)


@quick
@given(signals, policies, memories)
def test_every_decision_is_within_the_bounds_and_says_why(
    signals: Signals, policy: Policy, memory: Memory
) -> None:
    decision, after = recommend(signals, policy, memory, NOW)
    assert policy.min_replicas <= decision.replicas <= policy.max_replicas
    assert decision.message
    assert after.replicas == signals.replicas
    assert recommend(signals, policy, memory, NOW) == (decision, after)


@quick
@given(signals, policies, memories, unknown)
def test_nothing_is_taken_away_on_missing_metrics(
    signals: Signals, policy: Policy, memory: Memory, missing: Unknown
) -> None:
    decision, _ = recommend(replace(signals, metrics=missing), policy, memory, NOW)
    assert decision.replicas >= min(signals.replicas, policy.max_replicas)


@quick
@given(signals, policies, memories, st.data())
def test_nothing_is_taken_away_when_one_value_is_missing(
    signals: Signals, policy: Policy, memory: Memory, data: st.DataObject
) -> None:
    if isinstance(signals.metrics, Unknown):
        return
    name = data.draw(st.sampled_from(["tokens_per_second", "queued_requests"]))
    holes = replace(signals.metrics, **{name: None})
    decision, _ = recommend(replace(signals, metrics=holes), policy, memory, NOW)
    assert decision.replicas >= min(signals.replicas, policy.max_replicas)


@quick
@given(signals, policies, memories)
def test_replicas_that_are_to_come_are_not_asked_for_twice(
    signals: Signals, policy: Policy, memory: Memory
) -> None:
    waiting = replace(signals.local, ready_endpoints=max(0, signals.replicas - 1))
    memory = replace(memory, pending_since=NOW - 1, replicas=signals.replicas)
    decision, _ = recommend(replace(signals, local=waiting), policy, memory, NOW)
    assert decision.replicas <= max(signals.replicas, policy.min_replicas)


@quick
@given(signals, policies, memories, st.floats(0, 1e6), st.integers(0, 1000))
def test_more_demand_never_means_fewer_replicas(
    signals: Signals, policy: Policy, memory: Memory, tokens: float, queued: int
) -> None:
    if isinstance(signals.metrics, Unknown) or signals.metrics.tokens_per_second is None:
        return
    # The replicas' own rates stay as they are, so that both decisions know the same capacity.
    more = replace(signals.metrics, tokens_per_second=signals.metrics.tokens_per_second + tokens)
    queue = replace(signals.local, queued_requests=signals.local.queued_requests + queued)
    low, _ = recommend(signals, policy, memory, NOW)
    high, _ = recommend(replace(signals, metrics=more, local=queue), policy, memory, NOW)
    assert high.replicas >= low.replicas


@dataclass
class Fleet:
    """Replicas of a known capacity under an offered load; cold starts take their time."""

    capacity: float
    cold_start: float
    replicas: int = 1
    births: list[float] = field(default_factory=lambda: [-1000.0])
    backlog: float = 0.0
    history: list[tuple[float, float, float]] = field(default_factory=list)
    tokens_per_request: float = 10.0

    def scale(self, replicas: int, now: float) -> None:
        self.births = self.births[:replicas] + [now] * (replicas - len(self.births))
        self.replicas = replicas

    def step(self, load: float, now: float, seconds: float) -> Signals:
        ready = sum(now - born >= self.cold_start for born in self.births)
        work = load * seconds + self.backlog
        served = min(work, ready * self.capacity * seconds)
        self.backlog = work - served
        self.history.append((now, served / seconds, self.backlog))
        seen = [(at, rate, left) for at, rate, left in self.history if at > now - 30.0]
        window = [(rate, left > 0) for _, rate, left in seen]
        span = max(seconds, seen[-1][0] - seen[0][0])
        growth = (seen[-1][2] - seen[0][2]) / span / self.tokens_per_request
        rate = sum(r for r, _ in window) / len(window)
        total = rate * 30.0 / self.tokens_per_request
        late = (
            sum(r for r, is_late in window if is_late) / len(window) * 30 / self.tokens_per_request
        )
        floor = 1.0 if all(is_late for _, is_late in window) else 0.0
        waiting = self.backlog / self.tokens_per_request
        readings = tuple(
            ReplicaReading(
                instance=str(i),
                age_seconds=1.0,
                whole_window=now - self.births[i] >= self.cold_start + 30.0,
                tokens_per_second=rate / ready,
                running=min(1.0, rate / ready / self.capacity) * 50,
                running_floor=0.0,
                waiting=waiting / ready,
                waiting_floor=floor,
                waiting_growth=growth / ready,
                owed=0.0,
                owed_floor=0.0,
                kv_usage=0.3,
                kv_usage_floor=0.3,
            )
            for i in range(ready)
        )
        short, long = (
            Outcomes({Outcome.GOOD: n * (total - late), Outcome.LATE_FIRST_TOKEN: n * late}, 30 * n)
            for n in (1.0, 10.0)
        )
        held = LocalSignals(0, int(waiting), ready, ready if self.backlog > 0 else 0)
        return Signals(self.replicas, held, MetricSignals(readings, rate, 0.0, 0.0, short, long))


def live(
    load: Callable[[float], float], seconds: float, fleet: Fleet, policy: Policy, tick: float = 2.5
) -> list[tuple[float, int, Rule]]:
    """Runs the real functions on a simulated fleet; the changes of replicas, with their rules."""
    memory, changes, now = start(fleet.replicas, 0.0), [], 0.0
    while now < seconds:
        decision, memory = recommend(fleet.step(load(now), now, tick), policy, memory, now)
        if decision.replicas != fleet.replicas:
            fleet.scale(decision.replicas, now)
            changes.append((now, decision.replicas, decision.rule))
        now += tick
    return changes


POLICY = Policy(
    1, 8, target_ratio=0.99, max_concurrent_requests=100, pending_seconds=120.0, lead_seconds=60.0
)


@pytest.mark.parametrize("target", [0.99, None])
def test_a_burst_gets_what_it_needs_and_gives_it_back(target: float | None) -> None:
    fleet = Fleet(capacity=100.0, cold_start=60.0)
    policy = replace(POLICY, target_ratio=target)
    changes = live(lambda now: 250.0 if 100 <= now < 1300 else 5.0, 3000.0, fleet, policy)
    counts = [n for _, n, _ in changes]
    assert fleet.backlog == 0
    assert max(counts) in (3, 4, 5)  # four for the load, one for the backlog
    assert (
        counts
        == sorted(counts[: counts.index(max(counts)) + 1]) + counts[counts.index(max(counts)) + 1 :]
    )
    assert counts[-1] == 1
    assert changes[0][0] <= 140.0
    down = [at for at, n, rule in changes if rule is Rule.DEMAND_FITS_FEWER]
    assert down
    assert down[0] >= 1300.0 + 270.0


@pytest.mark.parametrize("share", [0.15, 0.5, 0.8])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_noise_changes_nothing_twice(share: float, replicas: int) -> None:
    random = Random(f"{share} {replicas}")
    fleet = Fleet(100.0, 60.0, replicas=replicas, births=[-1000.0] * replicas)
    load = share * replicas * 100.0
    changes = live(lambda now: load * random.uniform(0.9, 1.1), 3600.0, fleet, POLICY)
    counts = [replicas, *(n for _, n, _ in changes)]
    assert counts == sorted(counts, reverse=True) or counts == sorted(counts), changes


@settings(max_examples=15, deadline=None)
@given(st.floats(1, 700), st.lists(st.floats(0.9, 1.1), min_size=20, max_size=20))
def test_no_flapping_once_the_capacity_is_known(load: float, noise: list[float]) -> None:
    memory = Memory(capacity=Capacity(Seen(100.0, 0.0), Seen(100.0, 0.0)), replicas=4)
    replicas, directions = 4, []
    for i in range(400):
        offered = load * noise[(i // 10) % len(noise)]
        now = 5.0 * i
        fleet = Fleet(100.0, 0.0, replicas, [-1000.0] * replicas)
        sight = fleet.step(min(offered, 99.0 * replicas), now, 5.0)
        assert isinstance(sight.metrics, MetricSignals)
        sight = replace(sight, metrics=replace(sight.metrics, tokens_per_second=offered))
        decision, memory = recommend(sight, POLICY, memory, now)
        if decision.replicas != replicas:
            directions.append(decision.replicas > replicas)
            replicas = decision.replicas
    assert len({*directions}) <= 1 or directions == sorted(directions, reverse=True)


def test_zero_traffic_is_quiet() -> None:
    assert live(lambda _: 0.0, 3600.0, Fleet(100.0, 60.0), POLICY) == []


def test_a_slow_start_does_not_cascade() -> None:
    fleet = Fleet(capacity=100.0, cold_start=300.0)
    policy = replace(POLICY, pending_seconds=600.0)
    changes = live(lambda _: 180.0, 330.0, fleet, policy)
    assert [n for _, n, _ in changes] == [2]
