"""What holds for every decision, and for a whole day of them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_strategies import NOW, memories, policies, quick, signals, unknown

from fastgen_api.names import Outcome
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
    name = data.draw(st.sampled_from(["arriving", "done", "queued_requests"]))
    holes = replace(signals.metrics, **{name: None})
    decision, _ = recommend(replace(signals, metrics=holes), policy, memory, NOW)
    assert decision.replicas >= min(signals.replicas, policy.max_replicas)


@quick
@given(signals, policies, memories)
def test_replicas_that_are_to_come_are_not_asked_for_twice(
    signals: Signals, policy: Policy, memory: Memory
) -> None:
    signals = replace(signals, replicas=max(1, signals.replicas))
    if isinstance(signals.metrics, MetricSignals):
        # Unless more arrives than those that are to come could carry.
        few = replace(signals.metrics, arriving=0.0, short=None, queue_growth=None)
        signals = replace(signals, metrics=few)
    memory = replace(memory, samples=())
    waiting = replace(signals.local, ready_endpoints=signals.replicas - 1)
    memory = replace(memory, pending_since=NOW - 1, replicas=signals.replicas)
    decision, _ = recommend(replace(signals, local=waiting), policy, memory, NOW)
    assert decision.replicas <= max(signals.replicas, policy.min_replicas)


@quick
@given(signals, policies, memories, st.floats(0, 1e6), st.integers(0, 1000))
def test_more_demand_never_means_fewer_replicas(
    signals: Signals, policy: Policy, memory: Memory, work: float, queued: int
) -> None:
    if isinstance(signals.metrics, Unknown) or signals.metrics.arriving is None:
        return
    # The replicas' own rates stay as they are, so that both decisions know the same capacity, and
    # so do the samples: what is said of a trend depends on all of them.
    memory = replace(memory, samples=())
    more = replace(signals.metrics, arriving=signals.metrics.arriving + work)
    queue = replace(signals.local, queued_requests=signals.local.queued_requests + queued)
    low, _ = recommend(signals, policy, memory, NOW)
    high, _ = recommend(replace(signals, metrics=more, local=queue), policy, memory, NOW)
    assert high.replicas >= low.replicas


@pytest.mark.parametrize("least", [0.0, 5e-324, 1e-300])
@pytest.mark.parametrize("arriving", [0.0, 1.0, 1e6])
def test_a_replica_that_does_nothing_breaks_no_decision(least: float, arriving: float) -> None:
    stuck = Capacity(None, Seen(least, NOW), missed=Seen(least, NOW))
    memory = Memory(capacity=stuck, replicas=2)
    reading = ReplicaReading("r", 1.0, True, work=0.0, running=0.0, kv_usage=0.0)
    counts = Outcomes({Outcome.GOOD: 100.0}, 30.0)
    for done in (0.0, arriving):
        seen = MetricSignals((reading, reading), arriving, 1.0, done, 0.0, 0.0, counts, counts)
        signals = Signals(2, LocalSignals(0, 0, 2, 0), seen)
        decision, _ = recommend(signals, POLICY, memory, NOW)
        assert 1 <= decision.replicas <= POLICY.max_replicas


@dataclass
class Fleet:
    """Replicas of a known capacity under an offered load; cold starts take their time."""

    capacity: float
    cold_start: float
    replicas: int = 1
    births: list[float] = field(default_factory=lambda: [-1000.0])
    backlog: float = 0.0
    history: list[tuple[float, float, float, float]] = field(default_factory=list)
    request_work: float = 0.1

    def scale(self, replicas: int, now: float) -> None:
        self.births = self.births[:replicas] + [now] * (replicas - len(self.births))
        self.replicas = replicas

    def step(self, load: float, now: float, seconds: float) -> Signals:
        ready = sum(now - born >= self.cold_start for born in self.births)
        work = load * seconds + self.backlog
        served = min(work, ready * self.capacity * seconds)
        self.backlog = work - served
        self.history.append((now, served / seconds, self.backlog, load))
        self.history = [each for each in self.history if each[0] > now - 30.0]
        seen = self.history
        window = [(rate, left > 0) for _, rate, left, _ in seen]
        arriving = sum(offered for *_, offered in seen) / len(seen)
        span = max(seconds, seen[-1][0] - seen[0][0])
        growth = (seen[-1][2] - seen[0][2]) / span / self.request_work
        rate = sum(r for r, _ in window) / len(window)
        total = rate * 30.0 / self.request_work
        late = sum(r for r, is_late in window if is_late) / len(window) * 30 / self.request_work
        floor = 1.0 if all(is_late for _, is_late in window) else 0.0
        waiting = self.backlog / self.request_work
        readings = tuple(
            ReplicaReading(
                instance=str(i),
                age_seconds=1.0,
                whole_window=now - self.births[i] >= self.cold_start + 30.0,
                work=rate / ready,
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
        each = self.request_work
        known = MetricSignals(readings, arriving, arriving / each, rate, 0.0, 0.0, short, long)
        return Signals(self.replicas, held, known)


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
    fleet = Fleet(capacity=1.0, cold_start=60.0)
    policy = replace(POLICY, target_ratio=target)
    changes = live(lambda now: 2.5 if 100 <= now < 1300 else 0.05, 3000.0, fleet, policy)
    counts = [n for _, n, _ in changes]
    assert fleet.backlog == 0
    assert max(counts) in (3, 4, 5, 6)  # three for the load, the others for the backlog
    assert (
        counts
        == sorted(counts[: counts.index(max(counts)) + 1]) + counts[counts.index(max(counts)) + 1 :]
    )
    assert counts[-1] == 1
    assert changes[0][0] <= 140.0
    # One that was there for the backlog may go before.
    down = [at for at, n, rule in changes if rule is Rule.DEMAND_FITS_FEWER and n < 3]
    assert down
    assert down[0] >= 1300.0 + 270.0


@pytest.mark.parametrize("share", [0.15, 0.5, 0.8])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_noise_changes_nothing_twice(share: float, replicas: int) -> None:
    random = Random(f"{share} {replicas}")
    fleet = Fleet(1.0, 60.0, replicas=replicas, births=[-1000.0] * replicas)
    load = share * replicas
    changes = live(lambda now: load * random.uniform(0.9, 1.1), 3600.0, fleet, POLICY)
    counts = [replicas, *(n for _, n, _ in changes)]
    assert counts == sorted(counts, reverse=True) or counts == sorted(counts), changes


@settings(max_examples=15)
@given(
    st.floats(0.01, 7),
    st.sampled_from([(0.05, POLICY.down_margin), (0.1, 0.8)]),
    st.lists(st.floats(-1, 1), min_size=20, max_size=20),
)
def test_no_flapping_once_the_capacity_is_known(
    load: float, width_and_margin: tuple[float, float], strays: list[float]
) -> None:
    """Noise slower than the window: the margin for going down bridges it, whatever it does."""
    width, margin = width_and_margin
    policy = replace(POLICY, down_margin=margin)
    noise = [1 + width * stray for stray in strays]
    memory = Memory(capacity=Capacity(Seen(1.0, 0.0), Seen(1.0, 0.0)), replicas=4)
    replicas, directions = 4, []
    for i in range(400):
        offered = load * noise[(i // 10) % len(noise)]
        now = 5.0 * i
        fleet = Fleet(1.0, 0.0, replicas, [-1000.0] * replicas)
        sight = fleet.step(min(offered, 0.99 * replicas), now, 5.0)
        assert isinstance(sight.metrics, MetricSignals)
        sight = replace(sight, metrics=replace(sight.metrics, arriving=offered))
        decision, memory = recommend(sight, policy, memory, now)
        if decision.replicas != replicas:
            directions.append(decision.replicas > replicas)
            replicas = decision.replicas
    assert len({*directions}) <= 1 or directions == sorted(directions, reverse=True)


def test_zero_traffic_is_quiet() -> None:
    assert live(lambda _: 0.0, 3600.0, Fleet(1.0, 60.0), POLICY) == []


def test_a_slow_start_does_not_cascade() -> None:
    fleet = Fleet(capacity=1.0, cold_start=300.0)
    policy = replace(POLICY, pending_seconds=600.0)
    changes = live(lambda _: 2.0, 330.0, fleet, policy)
    # What 2.0 needs with a headroom of 90 %, however long it takes to come.
    assert [n for _, n, _ in changes] == [3]


@pytest.mark.parametrize(("load", "work"), [(0.8, 0.1), (0.8, 1.0), (2.5, 1.0), (1.5, 3.0)])
def test_arrivals_at_random_turn_the_number_twice_an_hour_at_most(load: float, work: float) -> None:
    """Requests come as a Poisson process, and what each asks for varies as much as its mean."""
    random, tick = Random(f"{load} {work}"), 5.0

    def offered(_: float) -> float:
        total, at = 0.0, random.expovariate(load / work)
        while at < tick:
            total += random.expovariate(1 / work)
            at += random.expovariate(load / work)
        return total / tick

    begin = round(load / 0.7 + 0.5)
    fleet = Fleet(1.0, 60.0, begin, [-1000.0] * begin, request_work=work)
    changes = live(offered, 2 * 3600.0, fleet, replace(POLICY, max_replicas=16), tick)
    counts = [begin, *(n for _, n, _ in changes)]
    steps = [after - before for before, after in pairwise(counts)]
    assert sum(one * next_ < 0 for one, next_ in pairwise(steps)) <= 4


def ramp(tell: Callable[[float, int], None]) -> None:
    """Demand for one replica grows to one for five within ten minutes; cold starts take two."""
    fleet = Fleet(capacity=1.0, cold_start=120.0, replicas=1)
    policy = replace(POLICY, pending_seconds=240.0, lead_seconds=120.0)

    def load(now: float) -> float:
        tell(fleet.backlog, fleet.replicas)
        return 0.3 + 3.5 * min(1.0, max(0.0, now - 300) / 600)

    live(load, 1800.0, fleet, policy)


def test_what_rises_is_met_earlier_than_without_a_look_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_look: list[float] = []
    without: list[float] = []
    ramp(lambda backlog, _: with_look.append(backlog))
    monkeypatch.setattr("fastgen_balancer.recommend.rise_ahead", lambda *_: 0.0)
    ramp(lambda backlog, _: without.append(backlog))
    assert 0 < sum(with_look) < 0.5 * sum(without)
