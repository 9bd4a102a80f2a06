"""One op per step computes what transformers computes, and draws what the kernels draw."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from answered import answers_of
from model_pair import ModelPair
from tiny_models import TINY_MODELS

from fastgen_api.spec import DType, Quantization
from fastgen_kernels.cpu_step.isa import isa_of
from fastgen_runtime.device.cpu_path import StepForward
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.architectures import ARCHITECTURES
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

pytestmark = pytest.mark.skipif(isa_of(cores.cpu_flags()) is None, reason="needs AVX2")

WIDE: Final = {"hidden_size": 96, "intermediate_size": 96}
"""Six heads of 16 dimensions: the op has no smaller ones."""
EXPERTS: Final = WIDE | {"head_dim": 16, "moe_intermediate_size": 32}
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tied, windows, biases": (
        "qwen3, biases, layer types",
        WIDE | {"head_dim": 16, "tie_word_embeddings": True},
    ),
    "untied, scaled rotary": ("llama, llama3", WIDE | {"attention_bias": True, "mlp_bias": True}),
    "windows": ("mistral, window", WIDE),
    "biases, a window in a layer": ("qwen2, window in a layer", WIDE),
    "windows, stored in one": ("phi3, window", WIDE),
    "learned positions": ("opt", {"hidden_size": 96, "word_embed_proj_dim": 96, "ffn_dim": 96}),
    "norms behind": (
        "opt, 350m",
        {"hidden_size": 96, "word_embed_proj_dim": 96, "ffn_dim": 80},
    ),
    "parallel, one key head": ("falcon, 7b", {"hidden_size": 96}),
    "parallel, two norms": ("falcon, 40b", {"hidden_size": 96}),
    "rotated in part": ("gpt-neox", {}),
    "experts": ("mixtral", WIDE),
    "experts, stacked": ("mixtral, stacked", WIDE | {"head_dim": 16}),
    "experts, then a dense layer": ("qwen3-moe", EXPERTS | {"mlp_only_layers": [1]}),
    "experts after a dense layer, tied": ("qwen3-moe, a dense layer", EXPERTS),
}
NUM_TOKENS: Final = 24


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelPair]:
    base, changes = MODELS[request.param]
    tiny = TINY_MODELS[base]
    tiny = replace(tiny, options=tiny.options | changes)
    made = ModelPair(tiny, tmp_path_factory.mktemp("model"), 16, CpuStepUse.AUTO)
    assert isinstance(made.runner._forward, StepForward), "the op was not used"
    yield made
    made.runner.close()


def test_no_architecture_is_left_out() -> None:
    computed = {TINY_MODELS[base].architecture for base, _ in MODELS.values()}
    assert {f"{name}ForCausalLM" for name in computed} == set(ARCHITECTURES)


def test_logits_of_whole_prompts(pair: ModelPair) -> None:
    pair.check_whole_prompts()


@pytest.mark.parametrize("seed", [1, 2])
def test_logits_in_random_chunks_and_batches(pair: ModelPair, seed: int) -> None:
    pair.check_random_chunks(seed)


def test_greedy_tokens(pair: ModelPair) -> None:
    pair.check_greedy_tokens()


def generate(
    runner: Runner, checkpoint: Checkpoint, max_running: int, sampling: Sampling
) -> tuple[list[list[int]], int]:
    """Each prompt's tokens, in steps of up to 32, and how often a request was preempted."""
    limits = Limits(
        budget_tokens=32,
        max_running=max_running,
        max_waiting=8,
        max_length=48,
        expected_output_tokens=1,
    )
    engine = Engine(runner, limits, checkpoint.eos_token_ids)
    answers = answers_of(engine, checkpoint, NUM_TOKENS, sampling)
    return answers, engine.load().num_preemptions


def runner_of(checkpoint: Checkpoint, cpu_step: CpuStepUse, quantization: Quantization) -> Runner:
    """Five blocks of 16 tokens, too few for all the answers, poisoned with NaN."""
    config = RunnerConfig(
        dtype=DType.FLOAT32,
        block_size=16,
        num_blocks=5,
        max_model_length=48,
        max_step_tokens=32,
        threads=2,
        cpu_step=cpu_step,
        quantization=quantization,
    )
    runner = Runner.load(checkpoint, config)
    runner.cache.fill_(torch.nan)
    return runner


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module", params=[Quantization.NONE, Quantization.INT8])
def runners(
    request: pytest.FixtureRequest, checkpoint: Checkpoint
) -> Iterator[tuple[Runner, Runner]]:
    """By the kernels, and by the op."""
    by_kernels, by_op = (
        runner_of(checkpoint, use, request.param) for use in (CpuStepUse.OFF, CpuStepUse.AUTO)
    )
    assert isinstance(by_op._forward, StepForward), "the op was not used"
    yield by_kernels, by_op
    by_op.close()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.95, seed=7)],
    ids=["greedy", "nucleus"],
)
def test_smollm2_draws_what_the_kernels_draw_though_preempted(
    checkpoint: Checkpoint, runners: tuple[Runner, Runner], sampling: Sampling
) -> None:
    alone, none = generate(runners[0], checkpoint, 1, sampling)
    together, preemptions = generate(runners[1], checkpoint, 4, sampling)
    assert none == 0
    assert preemptions > 0
    assert together == alone
