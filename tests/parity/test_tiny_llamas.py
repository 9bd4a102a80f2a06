"""A small random Llama, saved by transformers: block sizes, file forms and damage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.step import Chunk
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.startup_error import ModelError

BASE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}


def save(folder: Path, options: dict[str, Any], **how: Any) -> LlamaForCausalLM:
    """A random model, also its norms and biases, written by transformers."""
    torch.manual_seed(sum(map(ord, repr(options))))
    model = LlamaForCausalLM(LlamaConfig(**(BASE | options))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, **how)
    return model


def load(folder: Path, block_size: int = 16) -> Runner:
    config = RunnerConfig(dtype=DType.FLOAT32, block_size=block_size, num_blocks=24, threads=1)
    runner = Runner.load(open_checkpoint(folder), config)
    runner.cache.fill_(torch.nan)
    return runner


def last_logits(
    runner: Runner, ids: list[int], sizes: list[int], blocks: list[int]
) -> torch.Tensor:
    """Logits after the last of `ids`, computed in chunks of the given sizes and the rest."""
    start = 0
    for size in [*sizes, len(ids) - sum(sizes)]:
        logits = runner.logits([Chunk("a", ids[start : start + size], start, blocks, None)], [0])
        start += size
    return logits[0]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_block_sizes(tmp_path: Path, block_size: int) -> None:
    model = save(tmp_path, {})
    ids = list(range(90))
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1]
    ours = last_logits(load(tmp_path, block_size), ids, [17], [4, 1, 7, 3, 9, 0])
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)


def test_shards_and_half_precision(tmp_path: Path) -> None:
    """Several files with an index, stored as bfloat16, computed in float32."""
    model = save(tmp_path / "float32", {}).bfloat16()
    model.save_pretrained(tmp_path / "half", max_shard_size="20KB")
    assert len(list((tmp_path / "half").glob("*.safetensors"))) > 1
    ids = [3, 1, 4, 1, 5]
    reference = LlamaForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, -1]
    ours = last_logits(load(tmp_path / "half"), ids, [], [0])
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)


def test_bfloat16_computes_about_the_same(tmp_path: Path) -> None:
    model = save(tmp_path, {"initializer_range": 0.1})
    config = RunnerConfig(dtype="BFloat16", block_size=16, num_blocks=4, threads=1)
    runner = Runner.load(open_checkpoint(tmp_path), config)
    ids = list(range(40))
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1]
    ours = runner.logits([Chunk("a", ids, 0, [2, 0, 1], None)], [0])[0].float()
    assert torch.nn.functional.cosine_similarity(ours, expected, dim=0) > 0.995


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    save(tmp_path, {})
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 48', '"intermediate_size": 64')
    )
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.gate_proj.*\[48, 32\].*\[64, 32\]"):
        load(tmp_path)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    save(tmp_path, {"attention_bias": True})
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"attention_bias": true', '"attention_bias": false')
    )
    with pytest.raises(ModelError, match=r"no place for: .*bias"):
        load(tmp_path)
