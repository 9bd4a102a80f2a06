"""Budgets keep running streams at their pace, and prompts moving whatever happens."""

import random
from dataclasses import replace

import pytest
from synthetic_machine import CPU_LIKE, GPU_LIKE, Machine, Simulation
from toy_model import request

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import AIM, Budget, Pace, allowed_seconds, choose_budget
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest, Request
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import Sampling

LIMITS = Limits(budget_tokens=2048, max_running=64, max_waiting=1000, max_length=20_000)
COST = StepCost(base=0.01, per_token=1e-4, per_attended=0.0, per_request=0.0)


def chats(count: int, rate: float, rng: random.Random) -> list[NewRequest]:
    """Short prompts with answers of some hundred tokens."""
    return [
        NewRequest(
            f"chat-{i}",
            [rng.randrange(1000) for _ in range(20)],
            rng.randrange(50, 200),
            Sampling(),
            ignore_eos=True,
            arrived=i / rate,
        )
        for i in range(count)
    ]


def documents(count: int, rate: float, rng: random.Random) -> list[NewRequest]:
    """Long prompts with short answers."""
    return [
        NewRequest(
            f"document-{i}",
            [rng.randrange(1000) for _ in range(8000)],
            20,
            Sampling(),
            ignore_eos=True,
            arrived=0.5 + i / rate,
        )
        for i in range(count)
    ]


def stream(num_tokens: int, first_token_at: float) -> Request:
    made = Request(request("s", 4, 100), 0)
    made.token_ids += [1] * num_tokens
    made.num_computed = len(made.token_ids) - 1
    made.first_token_at = first_token_at
    return made


@pytest.mark.parametrize("target", [0.03, 0.05])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_streams_keep_their_pace_while_long_prompts_arrive(target: float, noise: float) -> None:
    rng = random.Random(1)
    simulation = Simulation(Machine(GPU_LIKE, noise), LIMITS, Pace(target), num_blocks=4000)
    simulation.run([*chats(100, 5.0, rng), *documents(20, 3.0, rng)])
    assert len(simulation.times) == 120
    assert max(simulation.paces()) <= target
    # Not by making every step small: the steps use the time that there is.
    largest = [ran.shape.num_tokens for ran in simulation.steps if ran.owed_prompt]
    assert sum(largest) / len(largest) > 100


def test_a_constant_budget_would_not_have_kept_it() -> None:
    rng = random.Random(1)
    simulation = Simulation(Machine(GPU_LIKE), LIMITS, Pace(), num_blocks=4000)
    simulation.run([*chats(100, 5.0, rng), *documents(20, 3.0, rng)])
    assert max(simulation.paces()) > 0.03


def test_no_step_is_longer_than_the_longest_gap() -> None:
    rng = random.Random(1)
    pace = Pace(0.05, longest_gap_seconds=0.06)
    simulation = Simulation(Machine(GPU_LIKE), LIMITS, pace, num_blocks=4000)
    simulation.run([*chats(60, 5.0, rng), *documents(10, 1.0, rng)])
    gaps = [ran.seconds for ran in simulation.steps if ran.is_paced]
    assert len(gaps) > 500
    assert max(gaps) <= 0.06


def test_a_machine_that_becomes_slower_breaks_the_pace_for_a_few_steps_only() -> None:
    rng = random.Random(1)
    machine = Machine(GPU_LIKE, 0.05, lambda number: 1.0 if number < 150 else 3.0)
    pace = Pace(None, longest_gap_seconds=0.08)
    simulation = Simulation(machine, LIMITS, pace, num_blocks=4000)
    simulation.run([*chats(100, 5.0, rng), *documents(20, 3.0, rng)])
    late = [
        number for number, ran in enumerate(simulation.steps) if ran.is_paced and ran.seconds > 0.08
    ]
    assert all(149 <= number < 160 for number in late)
    assert late


def test_short_prompts_are_due_before_long_ones_that_came_a_little_earlier() -> None:
    pace = Pace(first_token_seconds=0.5, seconds_per_prompt_token=0.002)
    assert pace.due(10.0, 8000) == pytest.approx(26.5)
    assert pace.due(20.0, 20) == pytest.approx(20.54)
    # Without a share per token FastGen's own orders them; nobody is overtaken for ever.
    assert Pace(first_token_seconds=0.5).due(10.0, 512) == pytest.approx(11.5)
    assert Pace().due(10.0, 8000) < Pace().due(26.0, 20)


@pytest.mark.parametrize("cost", [GPU_LIKE, CPU_LIKE])
def test_prompts_get_a_block_per_step_even_when_the_pace_cannot_be_kept(cost: StepCost) -> None:
    rng = random.Random(1)
    simulation = Simulation(Machine(cost), LIMITS, Pace(1e-4, 1e-4), num_blocks=4000)
    simulation.run([*chats(20, 50.0, rng), *documents(2, 10.0, rng)])
    owing = [ran for ran in simulation.steps if ran.owed_prompt and ran.is_paced]
    assert len(owing) > 100
    # The last pieces of prompts are smaller, and requests then end or begin.
    full = [ran for ran in owing if ran.num_prompt_tokens >= 64]
    assert len(full) > 0.8 * len(owing)
    assert max(ran.num_prompt_tokens for ran in owing) <= 64 + 20


def test_a_stream_that_is_late_beyond_hope_holds_up_no_prompts() -> None:
    """A freeze makes one stream miss its target for good: prompts then get more than a block."""
    rng = random.Random(1)
    machine = Machine(GPU_LIKE, slowness=lambda number: 4000.0 if number == 20 else 1.0)
    simulation = Simulation(machine, LIMITS, Pace(0.016), num_blocks=4000)
    victim = NewRequest("victim", [1] * 20, 2000, Sampling(), ignore_eos=True)
    later = [replace(one, arrived=one.arrived + 40) for one in documents(4, 100.0, rng)]
    simulation.run([victim, *later])
    assert simulation.times["victim"][-1] > 2000 * 0.016
    prompt_steps = [ran for ran in simulation.steps if ran.num_prompt_tokens > 20]
    # At half a pace a step would hold one block, and the four documents would take 500 steps.
    assert len(prompt_steps) < 32_000 / 200


def test_streams_without_a_target_get_the_usual_constant() -> None:
    running = [stream(5, 0.0)]
    assert choose_budget(2048, 64, running, Pace(), COST, 1.0) == Budget(512)
    assert choose_budget(256, 64, running, Pace(), COST, 1.0) == Budget(256)
    assert choose_budget(2048, 64, running * 600, Pace(), COST, 1.0) == Budget(600)
    assert choose_budget(2048, 64, [], Pace(0.05), None, 1.0) == Budget(512)


@pytest.mark.parametrize(
    ("cost", "tokens"),
    [
        (GPU_LIKE, 2048),  # 8 ms for the weights: a larger step costs hardly more
        (CPU_LIKE, 512),  # 12 ms, after which each token costs its millisecond
        (StepCost(0.0, 1e-3, 0.0, 0.0), 512),
    ],
)
def test_without_streams_steps_grow_as_long_as_that_saves_time(cost: StepCost, tokens: int) -> None:
    prompt = Request(request("p", 50, 5), 0)
    for running in ([], [prompt]):
        budget = choose_budget(2048, 64, running, Pace(0.05, 0.1), cost, 1.0)
        scheduler = Scheduler(BlockPool(100, 64), LIMITS)
        scheduler.add(request("long", 5000, 5))
        assert scheduler.schedule(0.0, budget).step.num_tokens == tokens


def test_before_anything_is_known_prompts_get_a_block() -> None:
    budget = choose_budget(512, 64, [stream(5, 0.9)], Pace(0.05), None, 1.0)
    scheduler = Scheduler(BlockPool(100, 64), LIMITS)
    scheduler.add(request("p", 500, 5))
    assert scheduler.schedule(0.0, budget).step.num_tokens == 64


@pytest.mark.parametrize(
    ("streams", "pace", "seconds"),
    [
        # Token 3 after the first is due at 10.0 + 3 × 0.05.
        ([(3, 10.0)], Pace(0.05), 0.05),
        # What came early is saved up, but spent two paces at a time, or a gap at a time.
        ([(13, 10.0)], Pace(0.05), 0.1),
        ([(13, 10.0)], Pace(0.05, 0.3), 0.3),
        ([(5, 10.0)], Pace(0.05, 0.3), 0.15),
        # The one that is most in a hurry decides; who is late catches up at half a pace.
        ([(13, 10.0), (3, 10.0)], Pace(0.05), 0.05),
        ([(13, 10.0), (1, 10.0)], Pace(0.05), 0.025),
        ([(1, 10.0)], Pace(None, 0.2), 0.2),
        # Beyond hope of 100 tokens: what is left is less than twice as long as it is late.
        ([(1, 7.65)], Pace(0.05), 0.025),
        ([(1, 7.55)], Pace(0.05), 0.1),
        ([(1, 7.55)], Pace(0.05, 0.06), 0.06),
        ([(1, 7.55), (3, 10.0)], Pace(0.05), 0.05),
        ([(99, 5.0)], Pace(0.05), 0.1),
    ],
)
def test_how_long_a_step_may_take(
    streams: list[tuple[int, float]], pace: Pace, seconds: float
) -> None:
    running = [stream(*one) for one in streams]
    targets = (pace.seconds_per_token, pace.longest_gap_seconds)
    aimed_at = Pace(*(None if target is None else target / AIM for target in targets))
    assert allowed_seconds(running, aimed_at, 10.1) == pytest.approx(seconds)


def test_what_is_computed_again_needs_no_pace() -> None:
    preempted = stream(10, 9.0)
    preempted.num_computed = 4
    assert allowed_seconds([preempted], Pace(0.05), 10.0) is None


def test_a_step_holds_what_its_time_allows() -> None:
    scheduler = Scheduler(BlockPool(100, 64), LIMITS)
    scheduler.add(request("p", 500, 5))
    scheduled = scheduler.schedule(0.0, Budget(2048, 0.03005, COST, 64))
    assert scheduled.step.num_tokens == 200
    assert scheduled.budget_tokens == 200
