"""Weights of layers in 8 bits: what is rounded, what is refused, and what memory it takes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_model import CONFIG, tensor_shapes, write_tiny_model
from torch import Tensor

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType, Quantization
from fastgen_kernels.dispatch import Device
from fastgen_kernels.torch_twins.quantized import WeightFormat, quantize
from fastgen_runtime.device import weight_reader
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.device.weight_format import weight_format
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
def test_attention_and_feed_forward_are_rounded_and_nothing_else(
    dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the checkpoint held the rounded weights of just these four layers of each block."""
    folder = write_tiny_model(tmp_path)
    rounded: list[tuple[int, ...]] = []

    def rounding(weight: Tensor, form: WeightFormat, group: int | None) -> object:
        rounded.append(tuple(weight.shape))
        assert group == WEIGHT_GROUP
        return quantize(weight, form, group)

    monkeypatch.setattr(weight_reader, "quantize", rounding)
    found = logits(folder, Quantization.INT8, dtype)
    assert rounded == 2 * [(64, 32), (32, 32), (96, 32), (32, 48)]
    exact = logits(folder, Quantization.NONE, dtype)
    assert torch.equal(exact, logits(folder, Quantization.AUTO, dtype))
    assert not torch.equal(found, exact)
    assert (found - exact).norm() < 0.05 * exact.norm()


def test_float16_computes_what_float32_does(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    wide, narrow = (
        logits(folder, Quantization.NONE, dtype) for dtype in (DType.FLOAT32, DType.FLOAT16)
    )
    assert (wide - narrow).norm() < 0.01 * wide.norm()


@pytest.mark.parametrize("packing", [Packing.NONE, Packing.LAYERS])
def test_the_memory_plan_counts_eight_bits_and_the_scales(packing: Packing) -> None:
    large = CONFIG | {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    config, shapes = config_from_hf(large), tensor_shapes(large)
    whole = weight_bytes(config, shapes, 2, packing=packing)
    small = weight_bytes(config, shapes, 2, packing=packing, quantized=True)
    matrices = sum(
        rows * columns
        for name, (rows, *rest) in shapes.items()
        for columns in rest
        if ".layers." in name
    )
    saved = 2 * matrices - matrices - 4 * matrices // WEIGHT_GROUP
    assert whole.resident - small.resident == saved
    assert small.largest >= 14336 * 4096 * 2 * 4, "a layer's rounding holds it in float32, too"
