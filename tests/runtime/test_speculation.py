"""Guessed tokens change no text: with the real model, on both ways that CPUs compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import write_tiny_model

import fastgen_runtime
from fastgen_api.spec import DType, Speculation
from fastgen_kernels.cpu_step.isa import isa_of
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

COST = StepCost(base=0.02, per_token=0.002, per_attended=1e-7, per_request=0.002)
"""Guesses are weighed by this, not by how busy the machine is."""
NUM_TOKENS = 40
PROMPTS = (
    "one two three four five six one two three four five six one two three",
    "The cat sat on the mat. The dog sat on the mat. The cow sat on the",
    "def fibonacci(n):",
)
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "drawn": Sampling(temperature=0.6, top_p=0.9, seed=11, logit_bias={260: 2.0}),
}


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module", params=CpuStepUse)
def runner(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Iterator[Runner]:
    """Six blocks of sixteen tokens, too few for all the answers, poisoned with NaN."""
    if request.param is CpuStepUse.AUTO and isa_of(cores.cpu_flags()) is None:
        pytest.skip("the op needs AVX2")
    config = RunnerConfig(
        dtype=DType.FLOAT32,
        block_size=16,
        num_blocks=6,
        max_model_length=96,
        max_step_tokens=32,
        threads=2,
        cpu_step=request.param,
    )
    made = Runner.load(checkpoint, config)
    made.cache.fill_(torch.nan)
    yield made
    made.close()


def generate(
    runner: Runner, checkpoint: Checkpoint, speculation: Speculation, sampling: Sampling
) -> tuple[dict[str, list[int]], int, int]:
    """Each prompt's tokens, how many guesses were right, and how often one was preempted."""
    limits = Limits(32, 4, 4, 96, expected_output_tokens=1, speculation=speculation)
    pool = BlockPool(runner.num_blocks, runner.block_size)
    scheduler = Scheduler(pool, limits, checkpoint.eos_token_ids)
    answers: dict[str, list[int]] = {}
    accepted = 0
    for prompt in PROMPTS:
        token_ids = checkpoint.tokenizer.encode(prompt).ids
        assert scheduler.add(NewRequest(prompt, token_ids, NUM_TOKENS, sampling)) is None
        answers[prompt] = []
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule(0.0, None, COST).step
        committed = scheduler.commit(step, runner.run(step), 0.0)
        scheduler.check()
        accepted += committed.num_accepted
        for token in committed.tokens:
            answers[token.request_id].append(token.token_id)
    return answers, accepted, scheduler.num_preemptions


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_answers_are_what_they_are_without_guesses(
    runner: Runner, checkpoint: Checkpoint, sampling: str
) -> None:
    told, none, preemptions = generate(runner, checkpoint, Speculation.NONE, SAMPLINGS[sampling])
    guessed, accepted, also = generate(
        runner, checkpoint, Speculation.PROMPT_LOOKUP, SAMPLINGS[sampling]
    )
    assert guessed == told
    assert none == 0
    assert accepted > 10
    assert preemptions > 0
    assert also > 0


def test_stop_strings_end_answers_whose_next_tokens_have_come_already(tmp_path: Path) -> None:
    """A random model's greedy text soon repeats itself."""
    folder = write_tiny_model(tmp_path / "model")
    settings: dict[str, Any] = {
        "dtype": "Float32", "max_concurrent_requests": 4, "kv_block_size": 16,
    }  # fmt: skip
    asked: dict[str, Any] = {"do_sample": False, "ignore_eos": True, "max_new_tokens": 100}
    prompts = ["abc", "de", "fghi"]
    with fastgen_runtime.pipeline(str(folder), **settings) as pipe:
        whole = pipe(prompts, **asked)
        stops = [response.generated_text[-30:-27] for response in whole]
        expected = [pipe(prompts, stop=stop, **asked) for stop in stops]
    settings["speculation"] = "PromptLookup"
    with fastgen_runtime.pipeline(str(folder), **settings) as pipe:
        assert pipe(prompts, **asked) == whole
        assert [pipe(prompts, stop=stop, **asked) for stop in stops] == expected
        load = pipe.load()
        assert (load.num_running, load.num_waiting) == (0, 0)
