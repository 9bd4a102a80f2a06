"""What runs where: for each operation and device, the implementation that is used."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from fastgen_kernels import triton_rows
from fastgen_kernels.activation import Activation
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins import (
    activation,
    attention,
    experts,
    kv_cache,
    linear,
    norm,
    quantized,
    rotary,
    sampling,
    token_logprobs,
)


class Op(StrEnum):
    """The operations of a forward pass; the names are the fields of `Kernels`."""

    RMS_NORM = "rms_norm"
    ADD_RMS_NORM = "add_rms_norm"
    LAYER_NORM = "layer_norm"
    ADD_LAYER_NORM = "add_layer_norm"
    ROTARY = "rotary"
    ACTIVATE = "activate"
    GATE = "gate"
    KV_WRITE = "kv_write"
    PLAN_ATTENTION = "plan_attention"
    ATTENTION = "attention"
    PACK_LINEAR = "pack_linear"
    PACK_QUANTIZED = "pack_quantized"
    ROUTE = "route"
    PACK_EXPERTS = "pack_experts"
    EXPERTS = "experts"
    SAMPLE = "sample"
    LOGPROBS = "logprobs"


class UnsupportedDeviceError(Exception):
    """No implementation runs on the device; the text says why, and which devices there are."""


AMPERE: Final = (8, 0)
"""Compute capability from which on there are bfloat16 and asynchronous copies to shared memory."""


@dataclass(frozen=True, slots=True)
class Device:
    """kind: `cpu`, `cuda`. capability: a GPU's compute capability, (0, 0) for CPUs.

    driver, toolkit: CUDA versions that the GPU's driver knows and that torch was built for; (0, 0)
    where that does not matter.
    """

    kind: str
    capability: tuple[int, int] = (0, 0)
    driver: tuple[int, int] = (0, 0)
    toolkit: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.kind} {major}.{minor}" if self.kind == "cuda" else self.kind


class PlanAttention(Protocol):
    def __call__(
        self,
        batch: RaggedBatch,
        heads: Heads,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
    ) -> Any: ...


class Attention(Protocol):
    def __call__(
        self,
        query: Tensor,
        cache: Tensor,
        plan: Any,
        scale: float | None = None,
        soft_cap: float | None = None,
    ) -> Tensor: ...


class Experts(Protocol):
    def __call__(
        self,
        x: Tensor,
        weights: Tensor,
        indices: Tensor,
        experts: Any,
        activation: Activation = Activation.SILU,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of each operation, for one device; shapes: see the torch twins."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    layer_norm: Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor]
    add_layer_norm: Callable[
        [Tensor, Tensor, Tensor | None, Tensor | None, float], tuple[Tensor, Tensor]
    ]
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor]
    activate: Callable[[Tensor, Activation], Tensor]
    gate: Callable[[Tensor, Activation], Tensor]
    kv_write: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    plan_attention: PlanAttention
    attention: Attention
    pack_linear: Callable[[Tensor, Tensor | None], linear.Linear]
    pack_quantized: Callable[[quantized.QuantizedWeight, Tensor | None], linear.Linear]
    route: Callable[[Tensor, int, bool], tuple[Tensor, Tensor]]
    pack_experts: Callable[[Iterable[tuple[Tensor, Tensor]]], Any]
    experts: Experts
    sample: Callable[[Tensor, Sequence[sampling.Draw], int | None], list[int | None]]
    logprobs: Callable[[Tensor, Sequence[int], int, int | None], list[token_logprobs.Logprobs]]


@dataclass(frozen=True, slots=True)
class Implementation:
    """`function` does the operation on devices of `kind` from compute capability `least` on.

    Or its `module:name` in `triton_kernels`: Triton is imported where a GPU is used only.
    """

    name: str
    function: Callable[..., Any] | str
    kind: str
    least: tuple[int, int] = (0, 0)

    def runs_on(self, device: Device) -> bool:
        return self.kind == device.kind and device.capability >= self.least

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        if not isinstance(self.function, str):
            return self.function
        module, name = self.function.split(":")
        found: Callable[..., Any] = getattr(
            import_module(f"fastgen_kernels.triton_kernels.{module}"), name
        )
        return found


_CPU_TABLE: Final[Mapping[Op, tuple[Implementation, ...]]] = {
    Op.RMS_NORM: (Implementation("torch", norm.rms_norm, "cpu"),),
    Op.ADD_RMS_NORM: (Implementation("torch", norm.add_rms_norm, "cpu"),),
    Op.LAYER_NORM: (Implementation("torch", norm.layer_norm, "cpu"),),
    Op.ADD_LAYER_NORM: (Implementation("torch", norm.add_layer_norm, "cpu"),),
    Op.ROTARY: (Implementation("torch", rotary.rotary, "cpu"),),
    Op.ACTIVATE: (Implementation("torch", activation.activate, "cpu"),),
    Op.GATE: (Implementation("torch", activation.gate, "cpu"),),
    Op.KV_WRITE: (Implementation("torch", kv_cache.kv_write, "cpu"),),
    Op.PLAN_ATTENTION: (Implementation("torch", attention.plan_attention, "cpu"),),
    Op.ATTENTION: (Implementation("torch", attention.attention, "cpu"),),
    Op.PACK_LINEAR: (Implementation("torch", linear.pack_linear, "cpu"),),
    Op.PACK_QUANTIZED: (Implementation("torch", quantized.pack_quantized, "cpu"),),
    Op.ROUTE: (Implementation("torch", experts.route, "cpu"),),
    Op.PACK_EXPERTS: (Implementation("torch", experts.pack_experts, "cpu"),),
    Op.EXPERTS: (Implementation("torch", experts.experts, "cpu"),),
    Op.SAMPLE: (Implementation("torch", sampling.sample, "cpu"),),
    Op.LOGPROBS: (Implementation("torch", token_logprobs.logprobs, "cpu"),),
}
_CUDA_TABLE: Final = {
    Op(op): Implementation("triton", place, "cuda", AMPERE)
    for op, place in triton_rows.ROWS.items()
} | {Op.PACK_LINEAR: Implementation("torch", linear.pack_linear, "cuda", AMPERE)}

TABLE: Final[Mapping[Op, tuple[Implementation, ...]]] = {
    op: (*implementations, _CUDA_TABLE[op]) for op, implementations in _CPU_TABLE.items()
}
"""The first implementation that runs on a device is used: put the fastest first."""


def select(op: Op, device: Device) -> Implementation:
    """The implementation of `op` for `device`; raises UnsupportedDeviceError."""
    for implementation in TABLE[op]:
        if implementation.runs_on(device):
            return implementation
    kinds = sorted({implementation.kind for implementation in TABLE[op]})
    raise UnsupportedDeviceError(
        f"no implementation of {op} runs on {device}; it runs on: {', '.join(kinds)}"
    )


def kernels_for(device: Device) -> Kernels:
    """Every operation for `device`; raises UnsupportedDeviceError."""
    check(device)
    return Kernels(**{op.value: select(op, device).load() for op in Op})


def check(device: Device) -> None:
    """Raises UnsupportedDeviceError for a GPU that is too old, or whose driver is."""
    if device.kind == "cuda" and device.driver[0] < device.toolkit[0]:
        raise UnsupportedDeviceError(
            f"the GPU's driver knows CUDA {_version(device.driver)}, and CUDA "
            f"{_version(device.toolkit)} is needed: update the driver, or set "
            "CUDA_VISIBLE_DEVICES to nothing to compute on the CPU"
        )
    if device.kind == "cuda" and device.capability < AMPERE:
        raise UnsupportedDeviceError(
            f"the GPU has compute capability {_version(device.capability)}, and the kernels need "
            f"{_version(AMPERE)} (NVIDIA Ampere) or newer: use another GPU, or set "
            "CUDA_VISIBLE_DEVICES to nothing to compute on the CPU"
        )


def _version(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
