"""Work in engine-seconds: what arrives is what is done, and a second of an engine carries one."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_machine import CPU_LIKE, GPU_LIKE, Machine, Simulation

from fastgen_api.names import Metric, Phase
from fastgen_api.spec import SLO, BudgetMode
from fastgen_runtime.engine.budget import AIM, Pace
from fastgen_runtime.engine.channel import Report
from fastgen_runtime.engine.engine import Load
from fastgen_runtime.engine.latency import StepCost, shape_of_chunks
from fastgen_runtime.engine.outlook import Forecast, LengthHistory
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling, Step
from fastgen_runtime.engine.work import Asked, Work, Workload, price, work_of
from fastgen_runtime.front.metrics import Metrics

PACE = Pace(seconds_per_token=0.05)
costs = st.builds(
    StepCost,
    st.floats(0, 0.1),
    st.floats(0, 1e-2),
    st.floats(0, 1e-5),
    st.floats(0, 1e-3),
)
asks = st.builds(Asked, st.integers(1, 5000), st.just(0), st.integers(1, 2000))


def test_a_step_as_long_as_the_pace_allows_is_its_own_length_in_engine_seconds() -> None:
    longest = AIM * 0.05
    tokens = round((longest - GPU_LIKE.base) / GPU_LIKE.per_token)
    shape = shape_of_chunks([(0, 1)] * 1)
    full = replace(shape, num_tokens=tokens, num_attended=0, num_requests=0)
    own = GPU_LIKE.seconds(full) - GPU_LIKE.base
    assert own * price(GPU_LIKE, PACE, 512) == pytest.approx(GPU_LIKE.seconds(full), rel=1e-3)


def test_a_request_costs_what_its_chunks_add_to_steps() -> None:
    prefill, decode = work_of(Asked(300, 0, 20), CPU_LIKE)
    assert prefill == pytest.approx(CPU_LIKE.chunk_seconds(0, 300))
    further = sum(CPU_LIKE.chunk_seconds(300 + k, 1) for k in range(19))
    assert decode == pytest.approx(further)


def test_cached_tokens_are_nearly_free() -> None:
    whole, _ = work_of(Asked(2000, 0, 1), GPU_LIKE)
    found, decode = work_of(Asked(2000, 1984, 1), GPU_LIKE)
    assert found < whole / 50
    assert decode == 0
    # Everything cached: the last token is computed all the same.
    assert work_of(Asked(2000, 2000, 1), GPU_LIKE)[0] > 0


@given(costs, asks, st.integers(1, 500), st.none() | st.floats(0.001, 1))
def test_prices_are_finite_and_more_tokens_never_cost_less(
    cost: StepCost, asked: Asked, more: int, target: float | None
) -> None:
    factor = price(cost, Pace(seconds_per_token=target), 512)
    assert 1 <= factor <= 3 + 1e-9
    for larger in (
        replace(asked, num_prompt=asked.num_prompt + more),
        replace(asked, num_output=asked.num_output + more),
    ):
        assert sum(work_of(larger, cost)) >= sum(work_of(asked, cost))


def test_what_arrives_before_costs_are_known_is_priced_later() -> None:
    workload = Workload(512)
    workload.arrive(Asked(100, 0, 10), None, PACE)
    workload.step(Step(()), None, PACE)
    assert workload.total(7, None, PACE) == Work(num_arrived=1)
    workload.step(Step(()), GPU_LIKE, PACE)
    total = workload.total(1000, GPU_LIKE, PACE)
    assert total.arrived_prefill > 0
    assert total.arrived_decode > 0
    assert total.owed == pytest.approx(1000 * GPU_LIKE.per_token, rel=0.3)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1)), min_size=200, max_size=300))
def test_forecasts_are_right_on_the_whole_whatever_limits_clients_set(
    requests: list[tuple[int, float]],
) -> None:
    history = LengthHistory(256)
    forecast = Forecast(history)
    told = really = 0
    for most, share in requests:
        expected, length = forecast.tokens(most), max(1, round(most * share))
        told, really = told + expected, really + length
        forecast.note(expected, length)
        history.note(length)
    # What is left is made up for by the next ones; no more than some requests' worth.
    assert abs(told - really) <= 0.5 * really + 3000


class Worked(Simulation):
    """Adds up work as an engine does, with the machine's own costs."""

    def __init__(self, cost: StepCost, pace: Pace, max_running: int) -> None:
        limits = Limits(
            2048, max_running, 100_000, 8192, budget_mode=BudgetMode.AUTO, prefix_caching=False
        )
        super().__init__(Machine(cost), limits, pace, 100_000)
        self.workload = Workload(512)
        add, commit = self.scheduler.add, self.scheduler.commit

        def added(new, *rest):
            refusal = add(new, *rest)
            self.workload.arrive(self.scheduler.asked(new.request_id), cost, pace)
            return refusal

        def committed(step, *rest):
            self.workload.step(step, cost, pace)
            return commit(step, *rest)

        self.scheduler.add, self.scheduler.commit = added, committed  # type: ignore[method-assign]


def requests(count: int, per_second: float, rng: random.Random) -> list[NewRequest]:
    arrived, made = 0.0, []
    for i in range(count):
        arrived += rng.expovariate(per_second)
        prompt = [1] * rng.randrange(50, 1200)
        made.append(NewRequest(str(i), prompt, rng.randrange(20, 200), Sampling(), arrived=arrived))
    return made


@pytest.mark.parametrize(("cost", "rate"), [(GPU_LIKE, 4.0), (CPU_LIKE, 0.5)])
def test_what_arrives_is_what_is_done(cost: StepCost, rate: float) -> None:
    run = Worked(cost, PACE, 256)
    run.run(requests(400, rate, random.Random(1)))
    total = run.workload.total(0, cost, PACE)
    assert total.num_arrived == 400
    assert total.arrived_prefill == pytest.approx(total.done_prefill, rel=0.05)
    assert total.arrived_decode == pytest.approx(total.done_decode, rel=0.1)


@pytest.mark.parametrize("cost", [GPU_LIKE, CPU_LIKE])
def test_an_overloaded_engine_does_about_one_engine_second_per_second(cost: StepCost) -> None:
    run = Worked(cost, PACE, 2000)
    run.run(requests(400, 1000.0, random.Random(2)))
    total = run.workload.total(0, cost, PACE)
    busy = sum(step.seconds for step in run.steps)
    assert 0.75 < (total.done_prefill + total.done_decode) / busy < 1.3


def test_a_lone_stream_is_a_small_part_of_an_engine() -> None:
    run = Worked(GPU_LIKE, PACE, 256)
    run.run([NewRequest("a", [1] * 100, 1000, Sampling())])
    total = run.workload.total(0, GPU_LIKE, PACE)
    assert total.done_decode / run.now < 0.02


def test_metrics_follow_the_engines_sums() -> None:
    metrics = Metrics("d", "n", SLO())
    for number in (1, 3):
        work = Work(number, 2.0 * number, 4.0 * number, 1.0 * number, 3.0 * number, 0.5)
        metrics.note_step(Report(1, Load(1, 0, 0, 5, 0, work)))
    text = metrics.render().decode()
    labels = 'deployment="d",deployment_namespace="n"'
    assert f"{Metric.ARRIVED_REQUESTS}{{{labels}}} 3.0" in text
    assert f'{Metric.ARRIVED_WORK}{{{labels},phase="{Phase.PREFILL}"}} 6.0' in text
    assert f'{Metric.ARRIVED_WORK}{{{labels},phase="{Phase.DECODE}"}} 12.0' in text
    assert f'{Metric.DONE_WORK}{{{labels},phase="{Phase.PREFILL}"}} 3.0' in text
    assert f'{Metric.DONE_WORK}{{{labels},phase="{Phase.DECODE}"}} 9.0' in text
