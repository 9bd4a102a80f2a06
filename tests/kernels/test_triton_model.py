"""Whole models by the kernels of a GPU, interpreted: the tokens that the twins choose."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from fastgen_api.spec import DType
from fastgen_kernels.dispatch import Device, Kernels, kernels_for
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention_plan import AttentionPlan, make_plan
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_runtime.device import loading
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.step import Chunk, Sampling, Step
from fastgen_runtime.models.checkpoint import open_checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:overflow"),
]
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
MODELS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "neox": GPTNeoXConfig.from_dict(SHAPE | {"rotary_pct": 0.5}),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
}
"""Norms of heads; layer norms, GELU and half-rotated heads; experts."""


def plan_attention(
    batch: RaggedBatch, heads: Heads, dtype: Any, device: torch.device, window: Any = None
) -> AttentionPlan:
    """For a GPU that is described rather than found; in float32, as the bounds are."""
    return make_plan(batch, heads, device, Gpu(90, 2), window)


def triton_kernels() -> Kernels:
    """What the table has for GPUs, but for the question how many multiprocessors there are."""
    return replace(kernels_for(Device("cuda", (9, 0))), plan_attention=plan_attention)


def runner_of(folder: Path) -> Runner:
    config = RunnerConfig(dtype=DType.FLOAT32, block_size=16, num_blocks=12, threads=1)
    runner = Runner.load(open_checkpoint(folder), config)
    runner.cache.fill_(torch.nan)
    return runner


def chunk(name: str, ids: list[int], start: int, blocks: list[int], **sampling: Any) -> Chunk:
    return Chunk(name, ids, start, blocks, Sampling(**sampling))


def told(runner: Runner) -> list[Any]:
    """Of two steps: prompts side by side, then a decode of each beside a further prompt."""
    prompts = [list(range(3, 30)), [5, 8, 13]]
    first = runner.run(
        Step(
            (
                chunk("a", prompts[0], 0, [4, 1], temperature=0.0, num_logprobs=3),
                chunk("b", prompts[1], 0, [7], temperature=1.0, top_k=20, seed=5),
            )
        )
    )
    tokens = [result.token_id for result in first]
    second = runner.run(
        Step(
            (
                chunk("a", [tokens[0]], 27, [4, 1], temperature=0.0),
                chunk("b", [tokens[1]], 3, [7], temperature=1.0, top_p=0.9, seed=5),
                chunk("c", list(range(40, 60)), 0, [2, 9], temperature=2.0, min_p=0.1, seed=9),
            )
        )
    )
    return [*first, *second]


@pytest.mark.parametrize("name", MODELS)
def test_models_choose_the_tokens_of_the_twins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(MODELS[name]).save_pretrained(tmp_path)
    expected = told(runner_of(tmp_path))
    monkeypatch.setattr(loading, "kernels_for", lambda _: triton_kernels())
    results = told(runner_of(tmp_path))
    assert [result.token_id for result in results] == [result.token_id for result in expected]
    ours, theirs = results[0].logprobs, expected[0].logprobs
    assert ours is not None
    assert theirs is not None
    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
    assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
