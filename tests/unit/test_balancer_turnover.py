"""How fast a queue moves, when who is refused should come again, and clients' own patience."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.deadline import timeout_seconds
from fastgen_balancer.turnover import (
    JITTER,
    LONGEST_RETRY_SECONDS,
    SHORTEST_RETRY_SECONDS,
    UNKNOWN_RETRY_SECONDS,
    WINDOW_SECONDS,
    Turnover,
    retry_after_seconds,
    wait_seconds,
)


@given(st.integers(0, 10**6), st.none() | st.floats(1e-4, 1e4), st.floats(0.0, 1e4), st.integers())
def test_the_time_to_come_again_is_bounded_and_near_the_wait(
    queued: int, rate: float | None, still: float, seed: int
) -> None:
    seconds = retry_after_seconds(queued, rate, still, Random(seed))
    assert SHORTEST_RETRY_SECONDS <= seconds <= math.ceil(LONGEST_RETRY_SECONDS * (1 + JITTER))
    wait = wait_seconds(queued, rate, still)
    shortest = UNKNOWN_RETRY_SECONDS if rate is None else SHORTEST_RETRY_SECONDS
    if shortest <= wait <= LONGEST_RETRY_SECONDS:
        assert wait <= seconds <= math.ceil(wait * (1 + JITTER))
    assert seconds == retry_after_seconds(queued, rate, still, Random(seed))


def test_a_longer_queue_is_a_later_return() -> None:
    late = [retry_after_seconds(n, 2.0, 0.0, Random(1)) for n in (0, 10, 40, 1000)]
    assert late == sorted(late)
    tries = {retry_after_seconds(40, 2.0, 0.0, Random(i)) for i in range(50)}
    assert len(tries) > 5, "not all at once"


def test_the_rate_is_that_of_this_queue_and_of_now() -> None:
    turnover = Turnover()
    assert turnover.rate(100.0) is None
    turnover.begin(100.0)
    assert turnover.rate(100.5) is None, "too short to say"
    for i in range(8):
        turnover.placed(100.0 + i / 2)
    turnover.begin(103.9)
    assert turnover.rate(104.0) == 2.0
    assert turnover.rate(104.0 + WINDOW_SECONDS) == 1 / (WINDOW_SECONDS + 0.5)
    turnover.end()
    turnover.begin(200.0)
    assert turnover.rate(202.0) is None


@pytest.mark.parametrize(
    ("placed", "now", "wait", "retry"),
    [
        ([], 0.5, 0.0, 5.0),
        ([], 1.1, 1.1, 5.0),
        ([], 9.0, 9.0, 9.0),
        ([], 300.0, 300.0, 60.0),
        ([0.2], 0.5, 0.0, 5.0),
        ([1.0], 2.0, 2.0, 20.0),
        ([1.0, 1.5, 1.9], 2.0, 2 / 3, 20 / 3),
        ([8.0], 8.0, 8.0, 60.0),
        ([7.0 + i / 50 for i in range(50)], 8.0, 8 / 50, 80 / 50),
        ([1.0, 2.0], 10.0, 5.0, 50.0),
        ([1.0, 2.0], 11.5, 10.0, 60.0),
        ([1.0, 2.0], 14.0, 12.0, 60.0),
        ([1.0, 2.0], 302.0, 300.0, 60.0),
        ([1.0, 301.5], 302.0, 10.0, 60.0),
    ],
)
def test_what_a_queue_that_began_at_0_tells(
    placed: list[float], now: float, wait: float, retry: float
) -> None:
    """wait: of the next one; retry: of who is refused while nine wait, the least."""
    turnover = Turnover()
    turnover.begin(0.0)
    for at in placed:
        turnover.placed(at)
    rate, still = turnover.rate(now), turnover.still_seconds(now)
    assert rate is None or rate > 0
    assert wait_seconds(0, rate, still) == pytest.approx(wait)
    told = [retry_after_seconds(9, rate, still, Random(i)) for i in range(200)]
    assert math.ceil(retry) <= min(told) <= math.ceil(retry * 1.1)
    assert max(told) <= math.ceil(retry * (1 + JITTER))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"grpc-timeout": "5S"}, 5),
        ({"grpc-timeout": "2M"}, 120),
        ({"grpc-timeout": "1H"}, 3600),
        ({"grpc-timeout": "250m"}, 0.25),
        ({"grpc-timeout": "500000u"}, 0.5),
        ({"grpc-timeout": "99999999n"}, 0.099999999),
        ({"grpc-timeout": "123456789S"}, None),
        ({"grpc-timeout": "5"}, None),
        ({"grpc-timeout": "-5S"}, None),
        ({"x-request-timeout": "2.5"}, 2.5),
        ({"x-stainless-read-timeout": "600"}, 600),
        ({"x-stainless-read-timeout": "600", "x-request-timeout": "3"}, 3),
        ({"x-request-timeout": "0"}, None),
        ({"x-request-timeout": "1e9"}, None),
        ({"x-request-timeout": "inf"}, None),
        ({"x-request-timeout": "١"}, None),
    ],
)
def test_what_a_client_tells_of_its_patience(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert timeout_seconds(headers) == seconds
