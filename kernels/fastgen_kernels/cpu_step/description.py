"""What the step's source has to know of a model: its shape and options, constants in the code."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastgen_kernels.activation import Activation
from fastgen_kernels.cpu_step.isa import Isa

LANES: Final = 16


class Element(StrEnum):
    """How numbers are stored."""

    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def bytes(self) -> int:
        return 2 if self is Element.BF16 else 4


class NormKind(StrEnum):
    """RMS: root mean square norm. LAYER: layer norm."""

    RMS = "rms"
    LAYER = "layer"


class Arrangement(StrEnum):
    """How a layer's attention A and feed-forward F are put together; N, M: its norms."""

    PRE_NORM = "pre_norm"
    """y = x + A(N(x)); y + F(M(y))"""
    POST_NORM = "post_norm"
    """y = N(x + A(x)); M(y + F(y))"""
    PARALLEL = "parallel"
    """x + A(N(x)) + F(N(x))"""
    PARALLEL_NORMS = "parallel_norms"
    """x + A(N(x)) + F(M(x))"""


@dataclass(frozen=True, slots=True)
class StepExperts:
    """Mixtures of experts in place of the feed-forward part of some layers; weights say of which.

    count: experts of a layer. per_token: how many compute each token. renormalise: the weights of
    a token's experts add up to 1.
    """

    count: int
    per_token: int
    intermediate_size: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class StepModel:
    """A decoder whose embedding is as wide as its layers.

    rotary_dim: dimensions of a head that are rotated; 0: none. weights, cache: how those are
    stored. int8_group: inputs that share a scale, where the matrices of layers and the output layer
    are int8; None: they are stored as `weights`, as the embedding is always. windows: of each
    layer, the tokens that a query sees, itself included, None for all; empty: all see all. Biases
    are there or not; they are no part of the shape.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    rotary_dim: int
    block_size: int
    weights: Element
    cache: Element
    int8_group: int | None = None
    windows: tuple[int | None, ...] = ()
    norm: NormKind = NormKind.RMS
    arrangement: Arrangement = Arrangement.PRE_NORM
    activation: Activation = Activation.SILU
    gated: bool = True
    query_key_norm: bool = False
    final_norm: bool = True
    experts: StepExperts | None = None

    def unsupported(self, isa: Isa) -> str | None:
        """Why the step cannot run such a model, in words; None: it can."""
        if self.head_dim % LANES:
            return f"its head size {self.head_dim} is no multiple of {LANES}"
        if self.block_size % LANES or (self.block_size > 64 and self.block_size % 64):
            return f"a block size of {self.block_size} is no multiple of {LANES}, or of 64 above it"
        if self.gated and self.intermediate_size % LANES:
            return f"its intermediate size {self.intermediate_size} is no multiple of {LANES}"
        if self.experts is not None and (reason := self._unsupported_experts(self.experts)):
            return reason
        if self.int8_group is not None and (self.int8_group < 2 or self.int8_group % 2):
            return f"its int8 groups of {self.int8_group} inputs are no pairs"
        if self.rotary_dim % 2:
            return f"it rotates {self.rotary_dim} dimensions of a head, which are no pairs"
        if self.activations(isa) is Element.BF16 and self.cache is Element.FP32:
            return "weights in bfloat16 with a cache in float32 cannot be multiplied on this CPU"
        return None

    def _unsupported_experts(self, experts: StepExperts) -> str | None:
        if not self.gated:
            return "its experts have no gates"
        if experts.intermediate_size % LANES:
            return f"its experts' size {experts.intermediate_size} is no multiple of {LANES}"
        if self.int8_group is not None:
            return "its experts' weights are in int8"
        return None

    def activations(self, isa: Isa) -> Element:
        """What the inputs of linear layers and attention are rounded to."""
        multiplies = isa in (Isa.AVX512_BF16, Isa.PORTABLE)
        return Element.BF16 if multiplies and self.weights is Element.BF16 else Element.FP32

    def step_bytes(self, isa: Isa, tokens: int) -> int:
        """Of the activations that a step of so many tokens needs."""
        wide = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + self.hidden_size
        inner = self.intermediate_size + self.num_heads * self.head_dim + 2 * self.hidden_size
        if (experts := self.experts) is not None:
            wide += experts.count + experts.per_token * self.hidden_size
            inner += experts.per_token * (self.hidden_size + experts.intermediate_size)
        return tokens * (4 * wide + self.activations(isa).bytes * inner)


def shape_header(model: StepModel, isa: Isa) -> str:
    """`shape.h` of the source."""
    types = {Element.BF16: "bf16", Element.FP32: "float"}
    windows = model.windows or (None,) * model.num_layers
    seen = ("EVERYTHING" if window is None else str(window) for window in windows)
    experts = model.experts or StepExperts(0, 0, 0, False)
    constants = {
        "LAYERS": model.num_layers,
        "HIDDEN": model.hidden_size,
        "HEADS": model.num_heads,
        "KV_HEADS": model.num_kv_heads,
        "HEAD_SIZE": model.head_dim,
        "INNER": model.intermediate_size,
        "VOCABULARY": model.vocab_size,
        "ROTATED": model.rotary_dim,
        "BLOCK_SIZE": model.block_size,
        "GROUP_INPUTS": model.int8_group or LANES,
        "EXPERTS": experts.count,
        "CHOSEN_EXPERTS": experts.per_token,
        "EXPERT_INNER": experts.intermediate_size,
    }
    flags = {
        "GATED": model.gated,
        "QUERY_KEY_NORM": model.query_key_norm,
        "FINAL_NORM": model.final_norm,
        "RENORMALISE": experts.renormalise,
    }
    return "\n".join(
        [
            "#pragma once",
            '#include "options.h"',
            "namespace fastgen {",
            f"using Weight = {types[model.weights]};",
            f"using LayerWeight = {'int8_t' if model.int8_group else types[model.weights]};",
            f"using Cached = {types[model.cache]};",
            f"using Act = {types[model.activations(isa)]};",
            *(f"constexpr int {name} = {value};" for name, value in constants.items()),
            *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
            f"constexpr int WINDOWS[LAYERS] = {{{', '.join(seen)}}};",
            f"constexpr float NORM_EPS = {model.norm_eps!r}f;",
            f"constexpr Norm NORM_KIND = Norm::{model.norm.name};",
            f"constexpr Arrangement ARRANGEMENT = Arrangement::{model.arrangement.name};",
            f"constexpr Activation ACTIVATION = Activation::{model.activation.name};",
            "}  // namespace fastgen",
            "",
        ]
    )
