"""What runs where: for each operation and device, the implementation that is used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins import activation, attention, kv_cache, linear, norm, sampling
from fastgen_kernels.torch_twins import rotary as rotary_twin


class Op(StrEnum):
    """The operations of a forward pass; the names are the fields of `Kernels`."""

    RMS_NORM = "rms_norm"
    ADD_RMS_NORM = "add_rms_norm"
    ROTARY = "rotary"
    SILU_MUL = "silu_mul"
    KV_WRITE = "kv_write"
    PLAN_ATTENTION = "plan_attention"
    ATTENTION = "attention"
    PACK_LINEAR = "pack_linear"
    SAMPLE = "sample"


class UnsupportedDeviceError(Exception):
    """No implementation runs on the device; the text says which devices there are."""


@dataclass(frozen=True, slots=True)
class Device:
    """kind: `cpu`, `cuda`. capability: a GPU's compute capability, (0, 0) for CPUs."""

    kind: str
    capability: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.kind} {major}.{minor}" if self.kind == "cuda" else self.kind


class PlanAttention(Protocol):
    def __call__(
        self, batch: RaggedBatch, token_bytes: int, dtype: torch.dtype, device: torch.device
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of each operation, for one device; shapes: see the torch twins."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    kv_write: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    plan_attention: PlanAttention
    attention: Callable[[Tensor, Tensor, Any], Tensor]
    pack_linear: Callable[[Tensor, Tensor | None], linear.Linear]
    sample: Callable[[Tensor, Sequence[sampling.Draw]], list[int]]


@dataclass(frozen=True, slots=True)
class Implementation:
    """`function` does the operation on devices of `kind` from compute capability `least` on."""

    name: str
    function: Callable[..., Any]
    kind: str
    least: tuple[int, int] = (0, 0)

    def runs_on(self, device: Device) -> bool:
        return self.kind == device.kind and device.capability >= self.least


TABLE: Final[Mapping[Op, tuple[Implementation, ...]]] = {
    Op.RMS_NORM: (Implementation("torch", norm.rms_norm, "cpu"),),
    Op.ADD_RMS_NORM: (Implementation("torch", norm.add_rms_norm, "cpu"),),
    Op.ROTARY: (Implementation("torch", rotary_twin.rotary, "cpu"),),
    Op.SILU_MUL: (Implementation("torch", activation.silu_mul, "cpu"),),
    Op.KV_WRITE: (Implementation("torch", kv_cache.kv_write, "cpu"),),
    Op.PLAN_ATTENTION: (Implementation("torch", attention.plan_attention, "cpu"),),
    Op.ATTENTION: (Implementation("torch", attention.attention, "cpu"),),
    Op.PACK_LINEAR: (Implementation("torch", linear.pack_linear, "cpu"),),
    Op.SAMPLE: (Implementation("torch", sampling.sample, "cpu"),),
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
    return Kernels(**{op.value: select(op, device).function for op in Op})
