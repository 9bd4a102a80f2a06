"""The latency model learns what steps take, and notices when that changes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_machine import CPU_LIKE, GPU_LIKE, Machine

from fastgen_runtime.engine.latency import (
    LatencyModel,
    StepCost,
    StepShape,
    shape_of,
    shape_of_chunks,
)
from fastgen_runtime.engine.step import Chunk, Step


def decodes(count: int, context: int = 300) -> StepShape:
    return shape_of_chunks((context, 1) for _ in range(count))


def mixed(rng: random.Random) -> StepShape:
    """Some answers and a piece of a prompt."""
    answers = [(rng.randrange(2000), 1) for _ in range(rng.randrange(1, 32))]
    prompt = [(rng.randrange(4000), rng.randrange(1, 2048))] if rng.random() < 0.5 else []
    return shape_of_chunks([*answers, *prompt])


def trained(machine: Machine, num_steps: int) -> LatencyModel:
    model, rng = LatencyModel(), random.Random(3)
    for _ in range(num_steps):
        shape = mixed(rng)
        model.observe(shape, machine.seconds(shape))
    return model


def predicted(model: LatencyModel, shape: StepShape) -> float:
    assert model.cost is not None
    return model.cost.seconds(shape)


UNSEEN = [
    decodes(1),
    decodes(40),
    shape_of_chunks([(0, 1800)]),
    shape_of_chunks([(3500, 256), *[(500, 1)] * 20]),
]


def test_a_shape_counts_what_a_step_computes() -> None:
    chunks = (Chunk("a", [1, 2, 3], 4, [0, 1], None), Chunk("b", [7], 9, [2, 3, 4], None))
    # Positions 4, 5, 6 attend to 5 + 6 + 7 tokens, position 9 to 10.
    assert shape_of(Step(chunks)) == StepShape(4, 5 + 6 + 7 + 10, 2)


@pytest.mark.parametrize("cost", [GPU_LIKE, CPU_LIKE])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_it_learns_a_machine(cost: StepCost, noise: float) -> None:
    model = trained(Machine(cost, noise), 150)
    for shape in UNSEEN:
        assert predicted(model, shape) == pytest.approx(cost.seconds(shape), rel=0.05 + noise)


def test_it_knows_something_after_three_steps() -> None:
    model = LatencyModel()
    for count in range(3):
        assert model.cost is None
        shape = shape_of_chunks([(0, 100 + count)])
        model.observe(shape, GPU_LIKE.seconds(shape))
    assert predicted(model, shape) == pytest.approx(GPU_LIKE.seconds(shape), rel=0.01)


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_it_follows_a_machine_that_changes_its_speed(factor: float) -> None:
    machine = Machine(GPU_LIKE, 0.05)
    model = trained(machine, 150)
    machine.slowness = lambda _: factor
    rng = random.Random(5)
    for _ in range(25):
        shape = mixed(rng)
        model.observe(shape, machine.seconds(shape))
    for shape in UNSEEN:
        assert predicted(model, shape) == pytest.approx(factor * GPU_LIKE.seconds(shape), rel=0.2)


def test_short_steps_tell_that_long_ones_became_slower_too() -> None:
    machine = Machine(GPU_LIKE)
    model = trained(machine, 150)
    machine.slowness = lambda _: 3.0
    for _ in range(6):
        model.observe(decodes(8), machine.seconds(decodes(8)))
    long = shape_of_chunks([(0, 1500)])
    assert predicted(model, long) == pytest.approx(3 * GPU_LIKE.seconds(long), rel=0.1)


def test_one_step_that_hangs_teaches_nothing_but_caution() -> None:
    machine = Machine(GPU_LIKE)
    model = trained(machine, 150)
    assert model.cost is not None
    before = model.cost.caution
    model.observe(decodes(8), 50 * GPU_LIKE.seconds(decodes(8)))
    assert model.cost.caution > before
    model.observe(decodes(8), GPU_LIKE.seconds(decodes(8)))
    for shape in UNSEEN:
        assert predicted(model, shape) == pytest.approx(GPU_LIKE.seconds(shape), rel=0.1)


def test_an_hour_of_short_steps_does_not_blur_what_long_ones_take() -> None:
    machine = Machine(CPU_LIKE, 0.1)
    model = trained(machine, 150)
    rng = random.Random(9)
    for _ in range(3000):
        shape = decodes(rng.randrange(1, 12), rng.randrange(100, 800))
        model.observe(shape, machine.seconds(shape))
    for shape in UNSEEN:
        assert predicted(model, shape) == pytest.approx(CPU_LIKE.seconds(shape), rel=0.15)


def test_it_follows_a_machine_that_becomes_slower_little_by_little() -> None:
    """So slowly that no step is unusual, and nothing is ever scaled."""
    machine = Machine(CPU_LIKE, slowness=lambda number: 1 + number / 4000)
    model, rng = LatencyModel(), random.Random(3)
    for _ in range(500):
        answers = decodes(rng.randrange(16, 40), rng.randrange(2000))
        prompt = shape_of_chunks([(rng.randrange(4000), rng.randrange(1024, 2048))])
        for shape in (answers, prompt):
            model.observe(shape, machine.seconds(shape))
    now = machine.slowness(1000)
    for shape in (decodes(30), shape_of_chunks([(0, 1800)])):
        assert predicted(model, shape) == pytest.approx(now * CPU_LIKE.seconds(shape), rel=0.03)


observations = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 3000)), min_size=1, max_size=5),
        st.floats(1e-5, 100),
    ),
    min_size=3,
    max_size=30,
)


@settings(max_examples=60)
@given(observations, st.integers(0, 4000), st.integers(1, 3000))
def test_more_work_never_seems_to_take_less_time(
    steps: list[tuple[list[tuple[int, int]], float]], start: int, length: int
) -> None:
    model = LatencyModel()
    for chunks, seconds in steps:
        model.observe(shape_of_chunks(chunks), seconds)
    less = predicted(model, shape_of_chunks([(start, length)]))
    assert 0 <= less < float("inf")
    for more in ([(start, length + 1)], [(start + 1, length)], [(start, length), (0, 1)]):
        assert predicted(model, shape_of_chunks(more)) >= less
    assert model.cost is not None
    assert 1 < model.cost.caution <= 2


@given(
    st.builds(
        StepCost,
        st.just(0.1),
        st.sampled_from([0.0, 1e-5, 1e-2]),
        st.sampled_from([0.0, 1e-9, 1e-5]),
        st.sampled_from([0.0, 1e-3]),
    ),
    st.floats(0, 10),
    st.integers(0, 100_000),
    st.integers(1, 5000),
)
def test_tokens_within_a_time_are_the_most_that_fit(
    cost: StepCost, seconds: float, start: int, most: int
) -> None:
    tokens = cost.tokens_within(seconds, start, most)
    assert 0 <= tokens <= most
    if tokens:
        assert cost.chunk_seconds(start, tokens) <= seconds * (1 + 1e-9)
    if tokens < most:
        assert cost.chunk_seconds(start, tokens + 1) >= seconds * (1 - 1e-9)
