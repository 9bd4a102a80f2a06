"""The engine with the real model: what the scheduler does must not change what is said."""

from pathlib import Path

import pytest
from answered import PROMPTS, answers_of

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

NUM_TOKENS = 12


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def runner(checkpoint: Checkpoint) -> Runner:
    """Thirteen blocks of four tokens: too few for all the answers."""
    config = RunnerConfig(
        dtype=DType.FLOAT32,
        block_size=4,
        num_blocks=13,
        max_model_length=52,
        max_step_tokens=32,
        threads=1,
    )
    return Runner.load(checkpoint, config)


def generate(
    runner: Runner, checkpoint: Checkpoint, limits: Limits, sampling: Sampling
) -> tuple[list[list[int]], int]:
    """Each prompt's tokens, all asked for at once, and how often one was preempted."""
    engine = Engine(runner, limits, checkpoint.eos_token_ids)
    answers = answers_of(engine, checkpoint, NUM_TOKENS, sampling)
    load = engine.load()
    assert (load.num_running, load.num_waiting, load.num_owed) == (0, 0, 0)
    assert load.num_free_blocks == runner.num_blocks
    return answers, load.num_preemptions


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(temperature=0.8, top_p=0.95, seed=7),
        Sampling(
            temperature=1.2,
            top_k=50,
            min_p=0.02,
            repetition_penalty=1.2,
            frequency_penalty=0.3,
            presence_penalty=0.2,
            logit_bias={260: 2.0},
            seed=2**63,
        ),
    ],
    ids=["greedy", "nucleus", "penalties"],
)
def test_preempted_requests_say_what_they_say_alone(
    runner: Runner, checkpoint: Checkpoint, sampling: Sampling
) -> None:
    careful = Limits(budget_tokens=32, max_running=1, max_waiting=8, max_length=52)
    greedy = Limits(
        budget_tokens=32, max_running=4, max_waiting=8, max_length=52, expected_output_tokens=1
    )
    alone, none = generate(runner, checkpoint, careful, sampling)
    together, preemptions = generate(runner, checkpoint, greedy, sampling)
    assert none == 0
    assert preemptions > 0
    assert together == alone
    assert all(len(tokens) == NUM_TOKENS for tokens in alone)


def test_what_is_found_in_the_cache_says_what_is_computed(
    runner: Runner, checkpoint: Checkpoint
) -> None:
    limits = Limits(budget_tokens=32, max_running=4, max_waiting=8, max_length=52)
    engine = Engine(runner, limits, checkpoint.eos_token_ids)
    token_ids = checkpoint.tokenizer.encode(PROMPTS[1]).ids
    answers: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    for names in (["first"], ["again", "and again"]):
        for name in names:
            new = NewRequest(name, token_ids, NUM_TOKENS, Sampling(temperature=0), ignore_eos=True)
            assert engine.add(new) is None
            answers[name] = []
        while engine.has_work:
            for token in engine.step().committed.tokens:
                answers[token.request_id].append(token.token_id)
                if token.started is not None:
                    cached[token.request_id] = token.started.cached_tokens
            engine.check()
    whole_blocks = (len(token_ids) - 1) // 4 * 4
    assert cached == {"first": 0, "again": whole_blocks, "and again": whole_blocks}
    assert answers["again"] == answers["and again"] == answers["first"]
