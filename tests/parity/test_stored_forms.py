"""The forms that the same weights are stored in, and the parts of them that a rank holds."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import TINY_MODELS, VOCABULARY
from torch import Tensor

from fastgen_kernels.dispatch import Device, Kernels, kernels_for
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_runtime.device.model import Inputs, Model
from fastgen_runtime.device.weights import load_weights
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.models.model_config import ModelConfig
from fastgen_runtime.models.shard import Shard
from fastgen_runtime.startup_error import ModelError

IDS = torch.randint(3, VOCABULARY, (20,), generator=torch.Generator().manual_seed(2)).tolist()
CPU = torch.device("cpu")


def make(
    checkpoint: Checkpoint,
    shard: Shard,
    add_up: Callable[[Tensor], Tensor],
    dtype: torch.dtype = torch.float32,
) -> Model:
    kernels = kernels_for(Device("cpu"))
    with torch.no_grad():
        weights = load_weights(checkpoint.config, checkpoint.tensors(), kernels, dtype, CPU, shard)
    return Model(shard.config(checkpoint.config), weights, kernels, 64, add_up)


@torch.inference_mode()
def logits(model: Model, config: ModelConfig, dtype: torch.dtype = torch.float32) -> Tensor:
    kernels: Kernels = kernels_for(Device("cpu"))
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
    batch = RaggedBatch.of([0], [len(IDS)], [[0, 1, 2]], 8)
    inputs = Inputs(
        torch.tensor(IDS),
        torch.from_numpy(batch.positions),
        torch.from_numpy(batch.write_slots),
        {
            window: kernels.plan_attention(batch, heads, dtype, CPU, window)
            for window in config.distinct_windows
        },
        torch.arange(len(IDS)),
    )
    shape = (config.num_layers, 2, 24, config.num_kv_heads, config.head_dim)
    return model.forward(inputs, torch.full(shape, torch.nan, dtype=dtype))


def whole(folder: Path) -> Tensor:
    checkpoint = open_checkpoint(folder)
    return logits(make(checkpoint, Shard(), lambda x: x), checkpoint.config)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("llama, grouped heads", "model.", ""),
        ("llama, grouped heads", "", "language_model."),
        ("opt", "model.", ""),
        ("falcon, 7b", "transformer.", ""),
        ("gpt-neox", "gpt_neox.", ""),
    ],
)
def test_other_prefixes(tmp_path: Path, name: str, old: str, new: str) -> None:
    TINY_MODELS[name].save(tmp_path)
    expected = whole(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({new + name.removeprefix(old): tensor for name, tensor in tensors.items()}, file)
    assert torch.equal(whole(tmp_path), expected)


def test_buffers_of_old_files_are_left_out(tmp_path: Path) -> None:
    TINY_MODELS["gpt-neox"].save(tmp_path)
    expected = whole(tmp_path)
    file = tmp_path / "model.safetensors"
    layer = "gpt_neox.layers.0.attention."
    buffers = {
        "bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
        "masked_bias": torch.tensor(-1e9),
        "rotary_emb.inv_freq": torch.ones(2),
    }
    added = {layer + name: values for name, values in buffers.items()}
    save_file(load_file(file) | added, file)
    assert torch.equal(whole(tmp_path), expected)


@pytest.mark.parametrize("name", ["mixtral, stacked", "qwen3-moe, every second layer, stacked"])
def test_stacked_experts_are_in_two_tensors(tmp_path: Path, name: str) -> None:
    """What test_architectures takes these models for."""
    TINY_MODELS[name].save(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.1.mlp.experts.gate_up_proj" in names
    assert not any(".experts.0." in name for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "phi3, longrope beyond",
        "qwen3-moe",
        "mixtral, stacked",
        "opt, 350m",
        "opt, neither biases nor weights of norms, untied",
        "falcon, 40b",
        "gpt-neox",
    ],
)
def test_half_precision_computes_about_the_same(tmp_path: Path, name: str) -> None:
    """Stored as bfloat16; float32 and bfloat16 read the same values."""
    TINY_MODELS[name].save(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    checkpoint = open_checkpoint(tmp_path)
    expected, ours = (
        logits(make(checkpoint, Shard(), lambda x: x, dtype), checkpoint.config, dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert ours.dtype == torch.bfloat16
    similarity = torch.nn.functional.cosine_similarity(ours.float(), expected, dim=-1)
    assert similarity.min() > 0.99


SPLIT = {
    "llama, grouped heads": 2,
    "llama, a key head each, biases, heads of 2": 2,
    "llama, one key head, tied, head_dim 12": 3,
    "qwen3": 2,
    "phi3, window": 2,
    "mixtral": 2,
    "qwen3-moe, every second layer, stacked": 2,
    "opt": 3,
    "opt, 350m": 2,
    "falcon, 7b": 3,
    "falcon, 40b": 2,
    "falcon, sequential, a key head each, biases": 2,
    "gpt-neox": 2,
    "phi3": 6,
}


@pytest.mark.parametrize(("name", "size"), SPLIT.items())
def test_ranks_add_up_to_the_whole(tmp_path: Path, name: str, size: int) -> None:
    """Threads stand for ranks here; six of them share two key/value heads."""
    TINY_MODELS[name].save(tmp_path)
    expected = whole(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    barrier = threading.Barrier(size, timeout=30)
    parts: dict[int, Tensor] = {}

    def run(rank: int) -> Tensor:
        def add_up(part: Tensor) -> Tensor:
            parts[rank] = part
            barrier.wait()
            total = torch.stack([parts[other] for other in range(size)]).sum(0)
            barrier.wait()
            return total

        shard = Shard(rank, size)
        return logits(make(checkpoint, shard, add_up), shard.config(checkpoint.config))

    with ThreadPoolExecutor(size) as pool:
        for ours in pool.map(run, range(size)):
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_what_cannot_be_split_is_told(tmp_path: Path) -> None:
    TINY_MODELS["llama, grouped heads"].save(tmp_path)
    config = open_checkpoint(tmp_path).config
    with pytest.raises(ModelError, match="6 heads cannot be split in 4 equal parts"):
        Shard(0, 4).config(config)
    with pytest.raises(ModelError, match="2 key/value heads cannot be split over 3 ranks"):
        Shard(0, 3).config(config)
