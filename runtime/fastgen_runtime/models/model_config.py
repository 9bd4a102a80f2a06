"""What a checkpoint says about its model, whatever its file format."""

from dataclasses import dataclass
from enum import StrEnum

from fastgen_api.names import StartupFailure
from fastgen_kernels.activation import Activation
from fastgen_runtime.startup_error import ModelError


class RopeKind(StrEnum):
    """How rotary frequencies are scaled for longer contexts."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"
    FACTORS = "factors"
    """A divisor per frequency is stored with the weights, as in Llama 3 GGUF files."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies.

    original_max_positions: length before the scaling; all kinds but DEFAULT, LINEAR and FACTORS.
    low_freq_factor, high_freq_factor: LLAMA3. factors: divisors per frequency, FACTORS; LONGROPE:
    those up to the original length, long_factors beyond it. beta_fast, beta_slow, mscale,
    mscale_all_dim, truncate: YARN. attention_factor: what YARN and LONGROPE multiply cosines and
    sines by; None: it follows from the others.
    """

    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_positions: int = 0
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


class NormKind(StrEnum):
    """RMS: root mean square norm. LAYER: layer norm."""

    RMS = "rms"
    LAYER = "layer"


class Block(StrEnum):
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
class Experts:
    """A mixture of experts in place of the feed-forward part of the layers whose `layers` is true.

    count: experts of a layer. per_token: how many compute each token. renormalise: the weights of
    a token's experts add up to 1.
    """

    count: int
    per_token: int
    intermediate_size: int
    renormalise: bool
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder; `dtype` is what the checkpoint stores, when it says so.

    max_positions: most tokens of a request. rotary_dim: dimensions of a head that are rotated; 0:
    none, None: all. position_offset: set for learned positions: that of the first one's row.
    embedding_size: width of embedding and output, where it is not hidden_size. norm_affine: norms
    have weights. windows: for each layer how many tokens a query sees, itself included, None for
    all; empty: all see all.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied_embeddings: bool
    rotary_dim: int | None = None
    position_offset: int | None = None
    embedding_size: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm: NormKind = NormKind.RMS
    norm_bias: bool = False
    norm_affine: bool = True
    final_norm: bool = True
    query_key_norm: bool = False
    block: Block = Block.PRE_NORM
    activation: Activation = Activation.SILU
    gated: bool = True
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in (
            "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
            "head_dim", "vocab_size", "max_positions",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise invalid(f"the model's {name} is {getattr(self, name)}, below 1")
        if self.num_heads % self.num_kv_heads:
            raise invalid(
                f"the model's {self.num_heads} heads are no multiple of "
                f"its {self.num_kv_heads} key/value heads"
            )
        if self.rotated % 2:
            of_them = "" if self.rotated == self.head_dim else f", {self.rotated} of it rotated"
            raise invalid(
                f"the model's head_dim is {self.head_dim}{of_them}: rotary embedding needs pairs"
            )
        if not 0 <= self.rotated <= self.head_dim:
            raise invalid(f"the model rotates {self.rotated} of {self.head_dim} dimensions")
        if self.windows and len(self.windows) != self.num_layers:
            raise invalid(f"the model has {len(self.windows)} windows for {self.num_layers} layers")
        if any(window is not None and window < 1 for window in self.windows):
            raise invalid("the model's sliding_window is below 1")
        if (experts := self.experts) and not 1 <= experts.per_token <= experts.count:
            raise invalid(f"the model uses {experts.per_token} of {experts.count} experts")

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    def window(self, layer: int) -> int | None:
        """Tokens that a query of the layer sees, itself included; None: all."""
        window = self.windows[layer] if self.windows else None
        return None if window is None or window >= self.max_positions else window

    @property
    def distinct_windows(self) -> tuple[int | None, ...]:
        """Each of the layers' windows once."""
        if not self.windows:
            return (None,)
        return tuple(dict.fromkeys(map(self.window, range(self.num_layers))))


def invalid(sentence: str) -> ModelError:
    """The files are damaged or contradict themselves."""
    return ModelError(StartupFailure.MODEL_INVALID, sentence)


def unsupported(sentence: str) -> ModelError:
    """The files are fine, but this version cannot run them."""
    return ModelError(StartupFailure.MODEL_UNSUPPORTED, sentence)
