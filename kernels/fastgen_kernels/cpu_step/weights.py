"""Weights in the order that the step reads them."""

import mmap
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from fastgen_kernels.cpu_step.description import LANES, Element

PANEL: Final = 2 * LANES
"""Outputs that a tile of the step computes together: layers are padded to a multiple."""

DTYPES: Final = {Element.BF16: torch.bfloat16, Element.FP32: torch.float32}

_CHUNK_BYTES: Final = 64 << 20
_LINE_BYTES: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A linear layer [outputs, inputs] as the step's source describes it (`linear.h`).

    weights: [outputs / 16, inputs / 2, 16, 2] in bfloat16, the last two swapped in float32, zeros
    where a size was padded. bias: float32, padded likewise.
    """

    weights: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int

    @property
    def bytes(self) -> int:
        """Of the memory that it holds."""
        return self.weights.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def unpacked(self) -> Tensor:
        """The weight [outputs, inputs]."""
        order = (0, 2, 1, 3) if self.weights.dtype == torch.bfloat16 else (0, 3, 1, 2)
        wide = self.weights.permute(order).flatten(2).flatten(0, 1)
        return wide[: self.outputs, : self.inputs]


class Packer:
    """Packs one layer after another into memory of large pages, which the step reads faster."""

    def __init__(self, element: Element) -> None:
        self._dtype = DTYPES[element]
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """A layer of weight [out, in] and bias [out] of any dtype, neither of which is kept."""
        outputs, inputs = weight.shape
        padding = (0, inputs % 2, 0, -outputs % PANEL)
        if any(padding):
            weight = functional.pad(weight, padding)
        pairs = weight.view(-1, LANES, weight.shape[1] // 2, 2)
        ordered = pairs.permute((0, 2, 1, 3) if self._dtype == torch.bfloat16 else (0, 2, 3, 1))
        packed = self._take(weight.numel()).view(ordered.shape).copy_(ordered)
        kept = None if bias is None else padded(bias)
        return PackedLinear(packed, kept, outputs, inputs)

    def _take(self, count: int) -> Tensor:
        """Memory for this many numbers."""
        size = -(-count * self._dtype.itemsize // _LINE_BYTES) * _LINE_BYTES
        if size > len(self._chunk):
            self._chunk = _large_pages(max(size, _CHUNK_BYTES))
        taken, self._chunk = self._chunk[:size], self._chunk[size:]
        return taken.view(self._dtype)[:count]


@dataclass(frozen=True, slots=True, eq=False)
class StepLayer:
    """One layer's weights; norms [hidden] and [head_dim], in any dtype.

    qkv: queries, keys and values in one. up: gates and values in one, gates first.
    feed_forward_norm: None where attention and feed-forward share a norm.
    """

    attention_norm: Tensor
    attention_norm_bias: Tensor | None
    qkv: PackedLinear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: PackedLinear
    feed_forward_norm: Tensor | None
    feed_forward_norm_bias: Tensor | None
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class StepWeights:
    """A model's weights.

    embedding: [vocabulary, hidden]; None: its rows are those of lm_head. positions: [most, hidden],
    row i for position i. norm, norm_bias: after the last layer, None where there is none. cos, sin:
    [most, rotary_dim / 2], None without rotary embedding.
    """

    embedding: Tensor | None
    positions: Tensor | None
    layers: tuple[StepLayer, ...]
    norm: Tensor | None
    norm_bias: Tensor | None
    lm_head: PackedLinear
    cos: Tensor | None
    sin: Tensor | None
    bytes: int = field(init=False)
    """Of the packed layers and the embedding; what norms and tables hold is small beside it."""

    def __post_init__(self) -> None:
        linears = [
            linear
            for layer in self.layers
            for linear in (layer.qkv, layer.output, layer.up, layer.down)
        ]
        held = sum(linear.bytes for linear in (*linears, self.lm_head))
        held += 0 if self.embedding is None else self.embedding.nbytes
        object.__setattr__(self, "bytes", held)


def padded(values: Tensor) -> Tensor:
    """[N] in float32 with zeros up to a multiple of PANEL."""
    return functional.pad(values.float(), (0, -len(values) % PANEL)).contiguous()


def _large_pages(size: int) -> Tensor:
    """Zeroed bytes; pages that nobody writes to cost no memory."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
