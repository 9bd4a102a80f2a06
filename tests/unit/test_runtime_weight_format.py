"""Weights of layers in 8 bits: what is rounded, what is refused, and what memory it takes."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_model import CONFIG, random_tensors, tensor_shapes, write_tiny_model
from torch import Tensor

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType, Quantization
from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.torch_twins.quantized import WeightFormat, quantize
from fastgen_runtime.device import weight_reader
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.device.weight_format import weight_format
from fastgen_runtime.device.weights import load_weights
from fastgen_runtime.engine.step import Chunk
from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.capacity import WEIGHT_GROUP, Packing, weight_bytes
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.models.model_config import Experts, ModelConfig
from fastgen_runtime.startup_error import StartupError

CPU, AMPERE, HOPPER = Device("cpu"), Device("cuda", (8, 0)), Device("cuda", (9, 0))
LLAMA = config_from_hf(CONFIG)
MIXTURE = replace(LLAMA, experts=Experts(4, 2, 48, True, (True, True)))


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [
        (Quantization.AUTO, CPU, None),
        (Quantization.NONE, HOPPER, None),
        (Quantization.INT8, CPU, WeightFormat.INT8),
        (Quantization.INT8, AMPERE, WeightFormat.INT8),
        (Quantization.FP8, HOPPER, WeightFormat.FP8),
    ],
)
def test_forms(wanted: Quantization, device: Device, expected: WeightFormat | None) -> None:
    assert weight_format(wanted, device, LLAMA) is expected


@pytest.mark.parametrize(
    ("wanted", "device", "model", "words"),
    [
        (Quantization.FP8, CPU, LLAMA, "computes on CPUs: choose Int8 or None"),
        (Quantization.FP8, AMPERE, LLAMA, r"capability 8\.9 or newer.* 8\.0: use int8"),
        (Quantization.INT8, HOPPER, MIXTURE, "weights of experts .*: choose None"),
    ],
)
def test_what_is_not_there_is_refused_with_the_way_out(
    wanted: Quantization, device: Device, model: ModelConfig, words: str
) -> None:
    with pytest.raises(StartupError, match=f"quantization is {wanted}, and .*{words}") as refusal:
        weight_format(wanted, device, model)
    assert refusal.value.reason is StartupFailure.CONFIG_INVALID


def logits(folder: Path, quantization: Quantization, dtype: DType) -> Tensor:
    """After a prompt of 37 tokens."""
    config = RunnerConfig(dtype=dtype, quantization=quantization, num_blocks=2, threads=1)
    runner = Runner.load(open_checkpoint(folder), config)
    return runner.logits([Chunk("r", range(3, 40), 0, (0, 1), None)], [0]).float()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize("is_tied", [False, True])
def test_linear_layers_are_rounded_and_nothing_else(
    dtype: DType, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of each block, and the output layer, tied to the embedding or not."""
    folder = write_tiny_model(tmp_path, tie_word_embeddings=is_tied)
    rounded: list[tuple[int, ...]] = []

    def rounding(weight: Tensor, form: WeightFormat, group: int | None) -> object:
        rounded.append(tuple(weight.shape))
        assert group == WEIGHT_GROUP
        return quantize(weight, form, group)

    monkeypatch.setattr(weight_reader, "quantize", rounding)
    found = logits(folder, Quantization.INT8, dtype)
    assert rounded == [*2 * [(64, 32), (32, 32), (96, 32), (32, 48)], (257, 32)]
    exact = logits(folder, Quantization.NONE, dtype)
    assert torch.equal(exact, logits(folder, Quantization.AUTO, dtype))
    assert not torch.equal(found, exact)
    assert (found - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("is_tied", [False, True])
def test_rounding_leaves_the_embedding_exact(is_tied: bool, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, tie_word_embeddings=is_tied))
    weights = load_weights(
        checkpoint.config,
        checkpoint.tensors(),
        kernels_for(CPU),
        torch.float32,
        torch.device("cpu"),
        form=WeightFormat.INT8,
    )
    stored = random_tensors(CONFIG)
    embedding = torch.from_numpy(stored["model.embed_tokens.weight"])
    assert torch.equal(weights.embedding, embedding)
    head = embedding if is_tied else torch.from_numpy(stored["lm_head.weight"])
    x = torch.eye(32)
    expected = quantize(head, WeightFormat.INT8, WEIGHT_GROUP).dequantize()
    assert torch.equal(weights.lm_head(x), expected.T)


def test_float16_computes_what_float32_does(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    wide, narrow = (
        logits(folder, Quantization.NONE, dtype) for dtype in (DType.FLOAT32, DType.FLOAT16)
    )
    assert (wide - narrow).norm() < 0.01 * wide.norm()


LARGE = CONFIG | {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}


@pytest.mark.parametrize("packing", Packing)
def test_the_memory_plan_counts_eight_bits_and_the_scales(packing: Packing) -> None:
    config, shapes = config_from_hf(LARGE), tensor_shapes(LARGE)
    whole = weight_bytes(config, shapes, 2, packing=packing)
    small = weight_bytes(config, shapes, 2, packing=packing, quantized=True)
    matrices = sum(
        rows * columns
        for name, (rows, *rest) in shapes.items()
        for columns in rest
        if ".layers." in name or name == "lm_head.weight"
    )
    saved = 2 * matrices - matrices - 4 * matrices // WEIGHT_GROUP
    assert whole.resident - small.resident == saved
    layer = 14336 * 4096 * 2
    assert 3 * layer <= small.largest <= 5 * layer, "a layer is there in the dtype and in 8 bits"
    wide = replace(config, vocab_size=128256)
    head = weight_bytes(wide, shapes, 2, packing=packing, quantized=True)
    assert head.largest >= 3 * 128256 * 4096, "so is the output layer"


@pytest.mark.parametrize("packing", Packing)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_tied_embedding_is_there_beside_the_rounded_output_layer(
    packing: Packing, ranks: int
) -> None:
    """Each rank has both whole, whether the checkpoint stores one of them or both."""
    shapes = tensor_shapes(LARGE)
    layers = sum(math.prod(shape) for name, shape in shapes.items() if "_proj" in name)
    embedding, norms = 257 * 4096, 5 * 4096
    rounded = layers // ranks + embedding
    expected = 2 * (embedding + norms) + rounded + 4 * rounded // WEIGHT_GROUP
    tied = replace(config_from_hf(LARGE), tied_embeddings=True)
    for stored in (shapes, {name: shapes[name] for name in shapes if name != "lm_head.weight"}):
        held = weight_bytes(tied, stored, 2, packing=packing, ranks=ranks, quantized=True)
        assert held.resident == expected
