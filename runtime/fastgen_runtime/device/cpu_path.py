"""A CPU's way to compute the whole step as one op: chosen, compiled and loaded."""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from fastgen_api.spec import DType
from fastgen_kernels.cpu_step.compiler import COMPILERS, Built, CompileError, build
from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa
from fastgen_kernels.cpu_step.step import CpuStep
from fastgen_kernels.cpu_step.weights import (
    PackedLinear,
    Packer,
    StepLayer,
    StepMixture,
    StepWeights,
)
from fastgen_kernels.dispatch import Kernels
from fastgen_kernels.ragged import Integers, RaggedBatch
from fastgen_kernels.torch_twins.quantized import WeightFormat
from fastgen_runtime.device.rotary import angle_tables
from fastgen_runtime.device.step_model import step_model
from fastgen_runtime.device.weights import LayerWeights, Mixture, Norm, Weights, load_weights
from fastgen_runtime.engine.runner_config import RunnerConfig
from fastgen_runtime.log import log_event, log_warning
from fastgen_runtime.models.capacity import mib
from fastgen_runtime.models.hf_folder import StoredTensor
from fastgen_runtime.models.model_config import ModelConfig
from fastgen_runtime.models.preflight import offer_now
from fastgen_runtime.sources.model import cache_directory

PREBUILT: Final = Path(sys.prefix, "share", "fastgen", "cpu-step")
"""Where an image has what was compiled while it was built."""
_COMPILER_BYTES: Final = 512 << 20
"""Twice what GCC 12 held at most for SmolLM2's step."""
_FALLBACK: Final = "the whole-step op is not used: computing kernel by kernel, which is slower"


@dataclass(frozen=True, slots=True)
class CpuPath:
    """A library that computes steps of `model`. dtype: of weights and cache."""

    model: StepModel
    isa: Isa
    dtype: DType
    library: Path

    def load(
        self,
        config: ModelConfig,
        tensors: Mapping[str, StoredTensor],
        kernels: Kernels,
        max_positions: int,
    ) -> StepWeights:
        """Reads and packs a tensor at a time; raises ModelError. max_positions: see `Model`."""
        packer: Any = Packer(self.model)  # what it makes is kept, never called
        dtype = torch.bfloat16 if self.model.weights is Element.BF16 else torch.float32
        weights = load_weights(
            config,
            tensors,
            replace(
                kernels,
                pack_linear=packer.linear,
                pack_quantized=packer.quantized,
                pack_experts=packer.experts,
            ),
            dtype,
            torch.device("cpu"),
            form=None if self.model.int8_group is None else WeightFormat.INT8,
        )
        return step_weights(config, weights, max_positions)


class StepForward:
    """By one op per step: a `Forward` on a CPU."""

    def __init__(self, path: CpuPath, weights: StepWeights, threads: int, cache: Tensor) -> None:
        self._step = CpuStep(path.library, path.model, weights, threads)
        self._cache = cache

    def hidden(self, batch: RaggedBatch, token_ids: Integers, rows: Integers) -> Tensor:
        """As `Forward`; in float32."""
        return self._step.hidden(batch, token_ids, rows, self._cache)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """As `Forward`; in float32."""
        return self._step.lm_head(hidden)

    def close(self) -> None:
        """Ends the op's threads."""
        self._step.close()


def find_cpu_path(
    config: ModelConfig,
    runner: RunnerConfig,
    cpu_flags: frozenset[str],
    form: WeightFormat | None = None,
) -> CpuPath | None:
    """Compiles where nobody has before; None, with a warning that says why, where it cannot be.

    form: of the weights of layers and output layer; None: in the dtype.
    """
    found = step_model(
        config, runner.dtype, runner.block_size, runner.tensor_parallel_size, cpu_flags, form
    )
    if isinstance(found, str):
        log_warning(_FALLBACK, why=found)
        return None
    model, isa, dtype = found
    try:
        built = _open(model, isa)
    except CompileError as error:
        log_warning(_FALLBACK, why=str(error))
        return None
    if built.compiled:
        log_event("whole-step op compiled", seconds=round(built.seconds, 1), path=str(built.path))
    log_event("whole-step op", isa=str(isa), dtype=str(dtype), library=built.path.name)
    return CpuPath(model, isa, dtype, built.path)


def _open(model: StepModel, isa: Isa) -> Built:
    """A library that this process can load; raises CompileError."""
    offer = offer_now(100)
    left = offer.total_bytes - offer.resident_bytes
    # A compiler that exceeds a pod's limit takes the replica with it.
    compilers = COMPILERS if left >= _COMPILER_BYTES else ()
    try:
        built = build(model, isa, cache_directory() / "cpu-step", PREBUILT, compilers)
        ctypes.CDLL(str(built.path))
    except CompileError as error:
        if compilers:
            raise
        raise CompileError(
            f"compiling it takes {mib(_COMPILER_BYTES)}, and {mib(left)} are left"
        ) from error
    except OSError as error:
        raise CompileError(f"the compiled library does not load: {error}") from error
    return built


def step_weights(config: ModelConfig, weights: Weights, max_positions: int) -> StepWeights:
    """Loaded weights, whose linear layers the op's packer made, in the op's form."""
    positions = weights.positions
    if positions is not None:
        positions = positions[config.position_offset or 0 :]
    cos, sin = angle_tables(config, max_positions) or (None, None)
    norm, norm_bias = _parts(weights.norm)
    lm_head = _packed(weights.lm_head)
    # A tied embedding's rows are read from the packed output layer, unless that is rounded.
    is_shared = config.tied_embeddings and lm_head.scales is None
    return StepWeights(
        embedding=None if is_shared else weights.embedding,
        positions=positions,
        layers=tuple(map(_layer, weights.layers)),
        norm=norm,
        norm_bias=norm_bias,
        lm_head=lm_head,
        cos=cos,
        sin=sin,
    )


def _layer(layer: LayerWeights) -> StepLayer:
    fed = layer.feed_forward
    before_feed, before_feed_bias = _parts(layer.feed_forward_norm)
    return StepLayer(
        attention_norm=layer.attention_norm.weight,
        attention_norm_bias=layer.attention_norm.bias,
        qkv=_packed(layer.qkv),
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        output=_packed(layer.output),
        feed_forward_norm=before_feed,
        feed_forward_norm_bias=before_feed_bias,
        up=None if isinstance(fed, Mixture) else _packed(fed.up),
        down=None if isinstance(fed, Mixture) else _packed(fed.down),
        mixture=StepMixture(_packed(fed.router), fed.experts) if isinstance(fed, Mixture) else None,
    )


def _parts(norm: Norm | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if norm is None else (norm.weight, norm.bias)


def _packed(linear: object) -> PackedLinear:
    if not isinstance(linear, PackedLinear):
        raise TypeError(f"{type(linear).__name__} was not packed for the op")
    return linear
