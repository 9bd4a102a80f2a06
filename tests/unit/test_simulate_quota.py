"""Replicas with a CPU limit: what a fit over their steps knows of their standing still.

The kernel lets a control group compute for its share of each period, and then not at all until the
next one (CFS bandwidth control). The simulator's steps are linear in what they hold instead.
"""

from collections import defaultdict
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.spec import BudgetMode
from fastgen_cli.percentile import percentile
from fastgen_cli.simulate.call import Call
from fastgen_cli.simulate.events import Events
from fastgen_cli.simulate.measured import QUERIED, measured_cost
from fastgen_cli.simulate.profile import CAUTION, Profile
from fastgen_cli.simulate.replica import Replica
from fastgen_cli.simulate.trace import Trace
from fastgen_cli.simulate.workload import Lengths, poisson, steady
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.front.goodness import Timings

PERIOD_SECONDS = 0.1
SMOLLM2 = StepCost(0.1, 0.0033, 0.0, 0.006, CAUTION)
"""On one core without a limit."""
LONGEST_SECONDS = 3600.0
MOST_OFF = 0.1
"""Two thirds of what a simulation may be off reality."""
SHORT = Lengths(prompt_median=60.0, output_median=10.0, most_prompt=256, most_output=64)


class Quota:
    """A control group that may use `share` of a core."""

    def __init__(self, share: float, offset: float) -> None:
        self._share = share
        self._offset = offset
        self._used: dict[int, float] = defaultdict(float)

    def end_of(self, now: float, cpu_seconds: float) -> float:
        """When so much computing that begins now is done."""
        while True:
            period = floor((now - self._offset) / PERIOD_SECONDS)
            ends = self._offset + (period + 1) * PERIOD_SECONDS
            left = self._share * PERIOD_SECONDS - self._used[period]
            part = max(0.0, min(cpu_seconds, left, ends - now))
            self._used[period] += part
            cpu_seconds -= part
            if cpu_seconds <= 1e-12:
                return now + part
            now = ends + 1e-9


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=20), st.floats(0.1, 1.0))
def test_a_busy_group_computes_its_share_of_the_time(steps: list[float], share: float) -> None:
    quota = Quota(share, 0.0)
    now = 0.0
    for seconds in steps:
        now = quota.end_of(now, seconds)
    spent = sum(steps)
    # It may be in the middle of a period, whose share it has used up at the beginning.
    assert spent / share - PERIOD_SECONDS <= now <= spent / share + PERIOD_SECONDS


class LimitedReplica(Replica):
    """Its steps end when its quota lets them; their times are counted as a replica counts them."""

    quota: Quota
    totals: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)

    def _stand_still(self, now: float) -> None:
        assert self.ends_at is not None
        assert self._scheduled is not None
        self.ends_at = self.quota.end_of(now, self.ends_at - now)
        chunks = self._scheduled.step.chunks
        grown = (
            self.ends_at - now,
            1.0,
            float(sum(len(chunk.token_ids) for chunk in chunks)),
            float(sum(chunk.sampling is not None for chunk in chunks)),
        )
        self.totals = tuple(a + b for a, b in zip(self.totals, grown, strict=True))

    def _begin(self, now: float) -> None:
        super()._begin(now)
        if self.ends_at is not None:
            self._stand_still(now)


def profile_of(cost: StepCost) -> Profile:
    return Profile(
        "limited", cost, num_blocks=1024, block_size=32, max_length=512, max_concurrent_requests=64,
        cold_start_seconds=10.0, budget_tokens=64, budget_mode=BudgetMode.FIXED,
    )  # fmt: skip


def serve(replica: Replica, ended: list[Timings], trace: Trace) -> list[tuple[float, ...]]:
    """Has a replica answer a trace; what it counted, second by second."""
    events = Events()
    scraped: list[tuple[float, ...]] = []

    def follow() -> None:
        if replica.ends_at is not None:
            ends_at = replica.ends_at
            events.at(ends_at, lambda: finish(ends_at))

    def finish(ends_at: float) -> None:
        if replica.ends_at == ends_at:
            replica.finish_step()
            follow()

    def arrive(number: int) -> None:
        one = trace[number]
        timings = Timings(one.at, prompt_tokens=one.prompt_tokens)
        call = Call(
            f"{number}", one.at, one.prompt_tokens, one.output_tokens, timings, one.output_tokens
        )
        replica.take(call, events.now)
        follow()

    def scrape() -> None:
        scraped.append((*getattr(replica, "totals", ()), float(replica.num_running)))
        if len(ended) < len(trace) and events.now < LONGEST_SECONDS:
            events.after(1.0, scrape)

    for number, one in enumerate(trace):
        events.at(one.at, lambda number=number: arrive(number))
    scrape()
    while events.step():
        pass
    return scraped


def latencies(ended: list[Timings]) -> tuple[float, float, float]:
    """TTFT P50 and P90, TPOT P50."""
    ttft = sorted(one.ttft_seconds or 0.0 for one in ended)
    tpot = sorted(one.tpot_seconds for one in ended if one.tpot_seconds is not None)
    found = (percentile(ttft, 50), percentile(ttft, 90), percentile(tpot, 50))
    return tuple(value or 0.0 for value in found)


@pytest.mark.parametrize("share", [0.3, 0.4, 0.8])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_fit_over_its_steps_predicts_a_replica_with_a_cpu_limit(
    share: float, seed: int
) -> None:
    rate = 1.1 * share
    trace = poisson(steady(rate), rate, 400.0 / share, seed, SHORT)
    pace = Pace(1.0, None, 4.0, 0.03)
    real: list[Timings] = []
    limited = LimitedReplica(
        "r", profile_of(SMOLLM2), pace, lambda c, _: real.append(c.timings), fast_forward=False
    )
    limited.quota = Quota(share, 0.037)
    rows = serve(limited, real, trace)
    answers = [
        [
            {
                "metric": {"instance": "r"},
                "values": [[at, row[column]] for at, row in enumerate(rows)],
            }
        ]
        for column in range(len(QUERIED))
    ]
    fitted = measured_cost(answers)
    ideal: list[Timings] = []
    linear = Replica("s", profile_of(fitted), pace, lambda c, _: ideal.append(c.timings))
    serve(linear, ideal, trace)
    for seen, predicted in zip(latencies(real), latencies(ideal), strict=True):
        assert predicted == pytest.approx(seen, rel=MOST_OFF)
