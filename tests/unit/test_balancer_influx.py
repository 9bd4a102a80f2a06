"""A surge is seen within seconds by the requests that are there, and nothing else is one."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_scenes import POLICY, fleet, knowing, local
from scaling_strategies import quick

from fastgen_balancer.influx import KEPT_SECONDS, Presence, note, surge
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import Signals


def life(counts: list[int], rate: float, tick: float = 2.0) -> tuple[Presence, ...]:
    presences: tuple[Presence, ...] = ()
    for index, count in enumerate(counts):
        presences = note(presences, count, rate, tick * index)
    return presences


@pytest.mark.parametrize(("before", "after", "ticks"), [(2.0, 8.0, 3), (1.0, 10.0, 1)])
def test_many_more_are_a_surge_within_seconds(before: float, after: float, ticks: int) -> None:
    growth = (after - before) * 2.0
    counts = [30] * 10 + [round(30 + growth * (i + 1)) for i in range(ticks)]
    assert surge(life(counts[:-1], before)) is None
    assert surge(life(counts, before)) == pytest.approx(after)


@pytest.mark.parametrize(
    "counts",
    [
        [],
        [30],
        [30] * 15,
        [90, 60, 30, 0],
        # A batch of a few, and replicas that all stand still while as many come as before.
        [30, 36, 36, 36],
        [30 + 8 * i for i in range(15)],
    ],
)
def test_what_is_steady_ends_comes_at_once_or_stands_still_is_none(counts: list[int]) -> None:
    assert surge(life(counts, 4.0)) is None


def test_without_a_rate_nothing_is_told_and_the_last_one_holds_on() -> None:
    assert note((), 5, None, 0.0) == ()
    assert surge(life([0, 100], 0.0)) is None
    known = life([30], 2.0)
    assert note(known, 60, None, 2.0)[-1] == Presence(2.0, 60, 2.0)


def test_chance_makes_no_surge_of_a_steady_load() -> None:
    """Hours of requests at random, with answers of any length."""
    random, rate, ends, now = Random(5), 4.0, [], 0.0
    presences: tuple[Presence, ...] = ()
    arrival, found = random.expovariate(rate), 0
    while now < 6 * 3600.0:
        while arrival <= now:
            ends.append(arrival + random.expovariate(1 / 20.0))
            arrival += random.expovariate(rate)
        ends = [end for end in ends if end > now]
        presences = note(presences, len(ends), rate, now)
        # It takes a while until as many end as come.
        found += now > 300.0 and surge(presences) is not None
        now += 2.0
    assert found == 0


@quick
@given(st.lists(st.integers(0, 10_000), max_size=40), st.floats(0, 1e3))
def test_a_surge_is_more_than_twice_what_came(counts: list[int], rate: float) -> None:
    told = surge(life(counts, rate))
    assert told is None or told > 2 * rate


def test_presences_are_few_and_young() -> None:
    presences = life([1] * 1000, 1.0)
    assert len(presences) <= KEPT_SECONDS / 2 + 1
    # A clock that went back leaves nothing from the future.
    assert note(presences, 1, 1.0, 10.0) == (Presence(10.0, 1, 1.0),)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_balancer_that_is_heard_again_brings_no_surge(is_heard: bool) -> None:
    """200 more requests within 4 s; or another balancer that has them, unheard for a while."""
    memory, wishes = replace(knowing(), replicas=3), []
    for index, held in enumerate((30, 30, 30, 230)):
        here = replace(local(3, in_flight=held), unheard_balancers=int(not is_heard and held == 30))
        signals = Signals(3, here, replace(fleet(3, 1.8), arriving_requests=2.0))
        decision, memory = recommend(signals, POLICY, memory, 10_000.0 + 2 * index)
        wishes.append(decision.replicas)
    assert (wishes[-1] > 3) is is_heard
