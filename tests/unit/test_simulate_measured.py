"""What steps cost, by the counters that replicas had in Prometheus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.promql import Selector
from fastgen_cli.errors import UserError
from fastgen_cli.simulate.measured import (
    QUERIED,
    WARM_UP_STEPS,
    crowding,
    measured_cost,
    queries_of,
)
from fastgen_runtime.engine.latency import StepCost, StepShape

COST = StepCost(0.25, 0.008, 0.0, 0.015)


def answers_of(replicas: dict[str, list[tuple[float, ...]]]) -> list[list[dict[str, object]]]:
    """Prometheus' answers of counters: a row for each second, and each counter a column."""
    return [
        [
            {
                "metric": {"instance": name},
                "values": [[at, repr(row[column])] for at, row in enumerate(rows)],
            }
            for name, rows in replicas.items()
        ]
        for column in range(len(QUERIED))
    ]


def counted(cost: StepCost, steps: list[tuple[int, int]]) -> list[tuple[float, ...]]:
    """The counters of a replica that makes a step a second, of so many tokens and requests; none
    runs when it is scraped."""
    rows = [(0.0, 0.0, 0.0, 0.0, 0.0)]
    for tokens, requests in steps:
        seconds, count, all_tokens, outputs, running = rows[-1]
        seconds += cost.seconds(StepShape(tokens, 0, requests))
        rows.append((seconds, count + 1, all_tokens + tokens, outputs + requests, running))
    return rows


WARM_UP = [(1, 1)] * WARM_UP_STEPS
shapes = st.tuples(st.integers(1, 200), st.integers(1, 8)).map(lambda s: (s[0] + s[1], s[1]))


@given(st.lists(shapes, min_size=10, max_size=40), st.lists(shapes, min_size=10, max_size=40))
def test_the_cost_of_steps_is_found_in_what_replicas_counted(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    found = measured_cost(answers_of({"a": counted(COST, one), "b": counted(COST, other)}))
    # Parts that always come together cannot be told apart, but whatever there was is predicted.
    for tokens, requests in (*one[WARM_UP_STEPS:], *other[WARM_UP_STEPS:]):
        shape = StepShape(tokens, 0, requests)
        assert found.seconds(shape) == pytest.approx(COST.seconds(shape), rel=1e-2)
    assert min(found.base, found.per_token, found.per_request) >= 0


def test_idle_seconds_restarts_and_missing_samples_do_not_count() -> None:
    steps = [*WARM_UP, (64, 1), (3, 3), (65, 2), (8, 8), (30, 1), (5, 5)]
    rows = counted(COST, steps)
    broken = [*rows, rows[-1], rows[-1], *counted(COST, steps[::-1])]
    answers = answers_of({"a": broken})
    # One counter misses a sample, so that second cannot be used and the next ones can.
    del answers[2][0]["values"][2]  # type: ignore[attr-defined]
    found = measured_cost(answers)
    assert found.base == pytest.approx(0.25, rel=1e-3)
    assert found.per_token == pytest.approx(0.008, rel=1e-3)
    assert found.per_request == pytest.approx(0.015, rel=1e-3)


@pytest.mark.parametrize(
    "rows", [[], counted(COST, [(5, 5)] * 3), [(1.0, 2.0, 3.0, 4.0, 0.0)] * 20]
)
def test_replicas_that_made_no_steps_are_told(rows: list[tuple[float, ...]]) -> None:
    with pytest.raises(UserError, match="fastgen_step_seconds_count"):
        measured_cost(answers_of({"a": rows}))


def test_prometheus_is_asked_for_one_deployment() -> None:
    labels = '{deployment="chat",deployment_namespace="team"}'
    assert queries_of(Selector("chat", "team")) == (
        f"fastgen_step_seconds_sum{labels}",
        f"fastgen_step_seconds_count{labels}",
        f"fastgen_step_tokens_sum{labels}",
        f"fastgen_output_tokens_total{labels}",
        f"fastgen_running_requests{labels}",
    )


def test_the_first_steps_of_a_process_tell_nothing() -> None:
    steps = [(64, 1), (3, 3), (65, 2), (8, 8), (30, 1), (5, 5)] * 3
    rows = counted(COST, [*WARM_UP, *steps])
    # The first one took ten seconds longer, which all later sums hold.
    late = [rows[0], *((seconds + 10.0, *others) for seconds, *others in rows[1:])]
    found = measured_cost(answers_of({"a": late}))
    assert found.base == pytest.approx(COST.base, rel=1e-3)
    assert found.per_token == pytest.approx(COST.per_token, rel=1e-3)


def test_steps_beside_others_are_told_apart_from_those_of_a_replica_alone() -> None:
    alone = counted(COST, [*WARM_UP, *[(64, 1), (8, 8)] * 10])
    slow = StepCost(1.5 * COST.base, 1.5 * COST.per_token, 0.0, 1.5 * COST.per_request)
    beside = counted(slow, [*WARM_UP, *[(64, 1), (8, 8)] * 10])
    idle = [beside[-1]] * len(alone)
    last = alone[-1]
    answers = answers_of(
        {"a": [*alone, *_after(last, beside)], "b": [*idle, *_after(idle[-1], beside)]}
    )
    found = crowding(answers)
    assert found.keys() == {1, 2}
    assert found[2] / found[1] == pytest.approx(1.5, rel=0.01)


def test_what_lies_between_the_steps_of_a_replica_with_enough_to_do_is_part_of_them() -> None:
    # A step each second, which lasts a quarter of it.
    steps = [*WARM_UP, *[(1, 1), (5, 5)] * 20]
    cost = StepCost(0.2, 0.0, 0.0, 0.02)
    idle = counted(cost, steps)
    assert measured_cost(answers_of({"a": idle})).base == pytest.approx(0.2, rel=1e-2)
    busy = [(*row[:-1], 3.0) for row in idle]
    found = measured_cost(answers_of({"a": busy}))
    assert found.base == pytest.approx(0.2 + (1 - 0.26), rel=1e-2)
    # For some seconds it may as well have been one long step.
    shortly = [(*row[:-1], 3.0 if 8 <= second < 16 else 0.0) for second, row in enumerate(idle)]
    assert measured_cost(answers_of({"a": shortly})).base == pytest.approx(0.2, rel=1e-2)


def _after(last: tuple[float, ...], rows: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return [tuple(a + b for a, b in zip(last, row, strict=True)) for row in rows]
