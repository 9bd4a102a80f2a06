"""Which models a CPU computes as one op, in which dtype, and what is said of the others."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_model import CONFIG, tensor_shapes, write_tiny_model

from fastgen_api.spec import DType
from fastgen_kernels.cpu_step.compiler import CompileError
from fastgen_kernels.cpu_step.description import (
    Arrangement,
    Element,
    NormKind,
    StepExperts,
    shape_header,
)
from fastgen_kernels.cpu_step.isa import Isa
from fastgen_kernels.cpu_step.prebuild import KINDS, smollm2
from fastgen_kernels.torch_twins.quantized import WeightFormat
from fastgen_runtime.device import cpu_path
from fastgen_runtime.device.cpu_path import find_cpu_path
from fastgen_runtime.device.loading import Loader
from fastgen_runtime.device.step_model import step_dtype, step_model
from fastgen_runtime.engine.runner_config import CpuStepUse, RunnerConfig
from fastgen_runtime.models.architectures import config_from_hf
from fastgen_runtime.models.capacity import (
    WEIGHT_GROUP,
    Packing,
    activation_bytes,
    activation_item_bytes,
    weight_bytes,
)
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.models.model_config import Block, Experts, ModelConfig
from fastgen_runtime.models.model_config import NormKind as ConfiguredNorm

AVX2 = frozenset({"avx2", "fma", "f16c"})
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "torch_dtype": "bfloat16"}
LLAMA: ModelConfig = config_from_hf(CONFIG | SHAPE)
"""Four heads of 16 dimensions."""
EXPERTS = Experts(4, 2, 64, True, (True, False))


def refusal(config: ModelConfig, flags: frozenset[str] = AVX2, **other: Any) -> str:
    found = step_model(
        config,
        other.get("dtype", DType.AUTO),
        other.get("block", 64),
        other.get("ranks", 1),
        flags,
        other.get("form"),
    )
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("wanted", "stored", "isa", "dtype"),
    [
        (DType.AUTO, "bfloat16", Isa.AVX2, DType.BFLOAT16),
        (DType.AUTO, "float16", Isa.AVX2, DType.FLOAT32),
        (DType.AUTO, None, Isa.AVX2, DType.FLOAT32),
        (DType.AUTO, "float32", Isa.AVX512_BF16, DType.BFLOAT16),
        (DType.FLOAT32, "bfloat16", Isa.AVX2, DType.FLOAT32),
        (DType.BFLOAT16, "float32", Isa.AVX2, DType.BFLOAT16),
    ],
)
def test_auto_keeps_bfloat16_where_nothing_is_lost(
    wanted: DType, stored: str | None, isa: Isa, dtype: DType
) -> None:
    assert step_dtype(wanted, stored, isa) is dtype


def test_what_cannot_be_one_op_is_named() -> None:
    assert "no AVX2" in refusal(LLAMA, frozenset({"sse4_2"}))
    assert "ranks" in refusal(LLAMA, ranks=2)
    assert "experts' size 40" in refusal(
        replace(LLAMA, experts=replace(EXPERTS, intermediate_size=40))
    )
    assert "no gates" in refusal(replace(LLAMA, experts=EXPERTS, gated=False))
    assert "experts' weights are in int8" in refusal(
        replace(LLAMA, experts=EXPERTS), form=WeightFormat.INT8
    )
    assert "embedding" in refusal(replace(LLAMA, embedding_size=32))
    assert "Float16" in refusal(LLAMA, dtype=DType.FLOAT16)
    assert "head size" in refusal(config_from_hf(CONFIG))
    assert "block size" in refusal(LLAMA, block=8)
    assert "weights in fp8" in refusal(LLAMA, form=WeightFormat.FP8)


def test_the_description_has_all_that_the_configuration_says() -> None:
    config = replace(
        LLAMA,
        windows=(None, 7),
        norm=ConfiguredNorm.LAYER,
        block=Block.PARALLEL_NORMS,
        gated=False,
        rotary_dim=8,
        final_norm=False,
        query_key_norm=True,
    )
    found = step_model(config, DType.FLOAT32, 32, 1, AVX2)
    assert not isinstance(found, str)
    model, isa, dtype = found
    assert (isa, dtype, model.weights, model.cache) == (
        Isa.AVX2,
        DType.FLOAT32,
        Element.FP32,
        Element.FP32,
    )
    assert (model.windows, model.norm, model.arrangement) == (
        (None, 7),
        NormKind.LAYER,
        Arrangement.PARALLEL_NORMS,
    )
    assert (model.rotary_dim, model.block_size, model.gated) == (8, 32, False)
    assert (model.final_norm, model.query_key_norm) == (False, True)


def test_the_description_has_the_experts() -> None:
    found = step_model(replace(LLAMA, experts=EXPERTS), DType.AUTO, 64, 1, AVX2)
    assert not isinstance(found, str)
    assert found[0].experts == StepExperts(4, 2, 64, True)
    header = shape_header(found[0], found[1])
    assert all(
        f"constexpr {constant};" in header
        for constant in (
            "int EXPERTS = 4", "int CHOSEN_EXPERTS = 2", "int EXPERT_INNER = 64",
            "bool RENORMALISE = true",
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "experts",
    [
        None,
        EXPERTS,
        Experts(128, 8, 32, True, (True, True)),
        Experts(4, 4, 1024, True, (True,) * 2),
    ],
    ids=["none", "few", "many small ones", "wide ones"],
)
def test_memory_is_planned_for_all_that_a_step_holds(experts: Experts | None) -> None:
    config = replace(LLAMA, experts=experts)
    found = step_model(config, DType.FLOAT32, 64, 1, AVX2)
    assert not isinstance(found, str)
    model, isa, _ = found
    assert model.step_bytes(isa, 512) <= activation_bytes(config, 512, 0, 4)


def test_weights_of_linear_layers_in_int8_leave_the_others_in_the_dtype() -> None:
    for form, group in ((None, None), (WeightFormat.INT8, WEIGHT_GROUP)):
        found = step_model(LLAMA, DType.AUTO, 64, 1, AVX2, form)
        assert not isinstance(found, str)
        model, _, dtype = found
        assert (model.int8_group, model.weights, dtype) == (group, Element.BF16, DType.BFLOAT16)


@pytest.mark.parametrize("block", Block)
def test_every_arrangement_and_norm_has_its_counterpart(block: Block) -> None:
    for norm in ConfiguredNorm:
        found = step_model(replace(LLAMA, block=block, norm=norm), DType.AUTO, 64, 1, AVX2)
        assert not isinstance(found, str)
        assert (found[0].arrangement.value, found[0].norm.value) == (block.value, norm.value)


def test_the_image_holds_the_steps_that_smollm2_asks_for(smollm2_path: Path) -> None:
    """For either kind of CPU, as replicas start by default."""
    config = open_checkpoint(smollm2_path).config
    for flags in (AVX2, AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"}):
        for stored in (config, replace(config, dtype="bfloat16")):
            found = step_model(stored, DType.AUTO, RunnerConfig().block_size, 1, flags)
            assert not isinstance(found, str)
            model, isa, _ = found
            assert (isa, model.weights) in KINDS
            assert shape_header(model, isa) == shape_header(smollm2(model.weights), isa)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", **SHAPE)


def test_no_compiler_is_one_warning_and_the_dtype_of_the_other_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build(*_: Any) -> None:
        raise CompileError("there is no C++ compiler")

    monkeypatch.setattr(cpu_path, "build", build)
    monkeypatch.setattr("fastgen_runtime.engine.cores.cpu_flags", lambda: AVX2)
    config = RunnerConfig(cpu_step=CpuStepUse.AUTO, num_blocks=2)
    with caplog.at_level(logging.INFO):
        loader = Loader(open_checkpoint(folder), config)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert vars(warning)["why"] == "there is no C++ compiler"
    assert "float32" in str(loader.cache(2).dtype)


def test_off_compiles_nothing_and_warns_of_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu_path, "build", pytest.fail)
    with caplog.at_level(logging.WARNING):
        Loader(open_checkpoint(folder), RunnerConfig(num_blocks=2))
    assert not caplog.records


def test_a_model_that_is_refused_is_told_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_cpu_path(LLAMA, RunnerConfig(tensor_parallel_size=2), AVX2) is None
    (warning,) = caplog.records
    assert "ranks" in vars(warning)["why"]


def test_a_tied_embedding_is_there_once_in_the_op() -> None:
    config = replace(LLAMA, tied_embeddings=True)
    shapes = tensor_shapes(CONFIG | SHAPE)
    kept = {
        packing: weight_bytes(config, shapes, 2, packing=packing).resident for packing in Packing
    }
    embedding = LLAMA.vocab_size * LLAMA.hidden_size * 2
    assert kept[Packing.STEP] == kept[Packing.NONE] == kept[Packing.LAYERS] - embedding


def test_the_op_computes_in_float32() -> None:
    assert activation_item_bytes(Packing.STEP, 2) == 4
    assert activation_item_bytes(Packing.LAYERS, 2) == 2
