"""A demand that clearly rises is met before it is there; one that only wavers is not."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.trend import Sample, note, rise_ahead

LEAD = 120.0


def history(demands: list[float]) -> tuple[Sample, ...]:
    samples: tuple[Sample, ...] = ()
    for index, demand in enumerate(demands):
        samples = note(samples, demand, 10.0 * index)
    return samples


def test_a_ramp_goes_on() -> None:
    ramp = history([1.0 + 0.05 * i for i in range(30)])
    assert rise_ahead(ramp, LEAD) == pytest.approx(0.05 / 10 * LEAD)


def test_a_burst_in_a_ramp_moves_it_little() -> None:
    demands = [1.0 + 0.05 * i for i in range(30)]
    demands[15] = 9.0
    assert rise_ahead(history(demands), LEAD) == pytest.approx(0.6, rel=0.1)


def test_no_more_than_half_is_added() -> None:
    steep = history([1.0 + i for i in range(30)])
    assert rise_ahead(steep, 600.0) == 15.0


@pytest.mark.parametrize(
    "demands",
    [
        [1.0] * 30,
        [0.0] * 30,
        [4.0 - 0.1 * i for i in range(30)],
        [1.0] * 20 + [5.0] * 10,
        [1.0 + 0.005 * i for i in range(30)],
        [1.0, 9.0] * 15,
        [1.0 + 0.1 * i for i in range(11)],
    ],
)
def test_steps_slopes_and_wavering_are_no_trend(demands: list[float]) -> None:
    assert rise_ahead(history(demands), LEAD) == 0


def test_chance_rarely_makes_a_trend() -> None:
    """Arrivals at random, 30 requests in the window, whose work varies as much as its mean."""
    random, found, demands = Random(7), 0, []
    for _ in range(4000):
        demands.append(sum(random.expovariate(30) for _ in range(10)))
        window = demands[-3:]
        demands[-1] = sum(window) / len(window) if len(demands) > 3 else demands[-1]
        found += rise_ahead(history(demands[-30:]), LEAD) > 0
    assert found / 4000 < 0.03


def test_requests_show_a_rise_that_their_lengths_hide() -> None:
    random = Random(3)
    rates = [1.0 + 0.05 * i for i in range(30)]
    samples: tuple[Sample, ...] = ()
    for index, rate in enumerate(rates):
        work = rate * random.choice([0.2, 1.8])
        samples = note(samples, work, 10.0 * index, rate)
    assert rise_ahead([Sample(each.at, each.demand) for each in samples], LEAD) == 0
    each = sum(s.demand for s in samples) / sum(rates)
    assert rise_ahead(samples, LEAD) == pytest.approx(
        min(0.05 / 10 * LEAD * each, samples[-1].demand / 2)
    )


@given(st.lists(st.floats(0, 1e3), max_size=40), st.floats(1, 1e4))
def test_a_trend_is_never_negative_and_never_more_than_half(
    demands: list[float], lead: float
) -> None:
    ahead = rise_ahead(history(demands), lead)
    assert 0 <= ahead <= 0.5 * (demands[-1] if demands else 0) + 1e-9


def test_samples_are_few_and_young() -> None:
    samples: tuple[Sample, ...] = ()
    for second in range(0, 4000, 2):
        samples = note(samples, float(second), float(second))
    assert len(samples) <= 31
    assert samples[0].at > 4000 - 310
    # A clock that went back leaves nothing from the future.
    assert all(each.at <= 100.0 for each in note(samples, 1.0, 100.0))
