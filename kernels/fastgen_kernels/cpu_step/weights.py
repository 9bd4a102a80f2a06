"""Weights in the order that the step reads them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from fastgen_kernels.cpu_step.description import LANES, Element, StepModel
from fastgen_kernels.large_pages import large_pages
from fastgen_kernels.torch_twins.quantized import QuantizedWeight

PANEL: Final = 2 * LANES
"""Outputs that a tile of the step computes together: layers are padded to a multiple."""

DTYPES: Final = {Element.BF16: torch.bfloat16, Element.FP32: torch.float32}

_CHUNK_BYTES: Final = 64 << 20
_LINE_BYTES: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A linear layer [outputs, inputs] as the step's source describes it (`linear.h`).

    weights: [outputs / 16, inputs / 2, 16, 2] in bfloat16, the last two swapped in other dtypes,
    zeros where a size was padded. scales: of int8 [outputs / 16, groups, 16] in float32. bias:
    float32, padded likewise.
    """

    weights: Tensor
    scales: Tensor | None
    bias: Tensor | None
    outputs: int
    inputs: int

    @property
    def bytes(self) -> int:
        """Of the memory that it holds."""
        held = (self.weights, self.scales, self.bias)
        return sum(values.nbytes for values in held if values is not None)


@dataclass(frozen=True, slots=True, eq=False)
class PackedExpert:
    """up: [hidden] to gates and values in one, gates first; down: [intermediate] to [hidden]."""

    up: PackedLinear
    down: PackedLinear


class Packer:
    """Packs one layer after another into memory of large pages, which the step reads faster."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """A layer of weight [out, in] and bias [out] of any dtype, neither of which is kept."""
        return self._packed(weight, None, bias, DTYPES[self._model.weights])

    def quantized(self, weight: QuantizedWeight, bias: Tensor | None) -> PackedLinear:
        """As `linear`; raises ValueError for other weights than the model's layers have."""
        if weight.values.dtype != torch.int8 or weight.group != self._model.int8_group:
            raise ValueError(
                f"{weight.values.dtype} in groups of {weight.group} inputs; the step was compiled "
                f"for int8 in groups of {self._model.int8_group}"
            )
        scales = functional.pad(weight.scales, (0, 0, 0, -len(weight.scales) % PANEL))
        lanes = scales.view(-1, LANES, scales.shape[1]).transpose(1, 2).contiguous()
        return self._packed(weight.values, lanes, bias, torch.int8)

    def experts(self, weights: Iterable[tuple[Tensor, Tensor]]) -> tuple[PackedExpert, ...]:
        """Of each one's up [2 I, H] and down [H, I], taken one at a time."""
        return tuple(
            PackedExpert(self.linear(up, None), self.linear(down, None)) for up, down in weights
        )

    def _packed(
        self, weight: Tensor, scales: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        outputs, inputs = weight.shape
        padding = (0, inputs % 2, 0, -outputs % PANEL)
        if any(padding):
            weight = functional.pad(weight, padding)
        pairs = weight.view(-1, LANES, weight.shape[1] // 2, 2)
        ordered = pairs.permute((0, 2, 1, 3) if dtype == torch.bfloat16 else (0, 2, 3, 1))
        packed = self._take(weight.numel(), dtype).view(ordered.shape).copy_(ordered)
        kept = None if bias is None else padded(bias)
        return PackedLinear(packed, scales, kept, outputs, inputs)

    def _take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Memory for this many numbers."""
        size = -(-count * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES
        if size > len(self._chunk):
            self._chunk = large_pages((max(size, _CHUNK_BYTES),), torch.uint8)
        taken, self._chunk = self._chunk[:size], self._chunk[size:]
        return taken.view(dtype)[:count]


@dataclass(frozen=True, slots=True, eq=False)
class StepMixture:
    """router: [hidden] to a logit of each expert."""

    router: PackedLinear
    experts: tuple[PackedExpert, ...]

    def linears(self) -> Iterator[PackedLinear]:
        yield self.router
        for expert in self.experts:
            yield from (expert.up, expert.down)


@dataclass(frozen=True, slots=True, eq=False)
class StepLayer:
    """One layer's weights; norms [hidden] and [head_dim], in any dtype.

    qkv: queries, keys and values in one. up: gates and values in one, gates first.
    feed_forward_norm: None where attention and feed-forward share a norm. mixture: in place of up
    and down.
    """

    attention_norm: Tensor
    attention_norm_bias: Tensor | None
    qkv: PackedLinear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: PackedLinear
    feed_forward_norm: Tensor | None
    feed_forward_norm_bias: Tensor | None
    up: PackedLinear | None
    down: PackedLinear | None
    mixture: StepMixture | None = None

    def linears(self) -> Iterator[PackedLinear]:
        yield from filter(None, (self.qkv, self.output, self.up, self.down))
        if self.mixture is not None:
            yield from self.mixture.linears()


@dataclass(frozen=True, slots=True, eq=False)
class StepWeights:
    """A model's weights.

    embedding: [vocabulary, hidden]; None: its rows are those of lm_head, which must not be int8
    then. positions: [most, hidden], row i for position i. norm, norm_bias: after the last layer,
    None where there is none. cos, sin: [most, rotary_dim / 2], None without rotary embedding.
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
        if self.embedding is None and self.lm_head.scales is not None:
            raise ValueError("an output layer of int8 holds no embedding")
        linears = [linear for layer in self.layers for linear in layer.linears()]
        held = sum(linear.bytes for linear in (*linears, self.lm_head))
        held += 0 if self.embedding is None else self.embedding.nbytes
        object.__setattr__(self, "bytes", held)


def padded(values: Tensor) -> Tensor:
    """[N] in float32 with zeros up to a multiple of PANEL."""
    return functional.pad(values.float(), (0, -len(values) % PANEL)).contiguous()
