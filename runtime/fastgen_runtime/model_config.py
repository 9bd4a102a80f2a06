"""What a checkpoint says about its model, whatever its file format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.startup_error import ModelError

SUPPORTED_ARCHITECTURES: Final = ("LlamaForCausalLM",)


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


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a Llama-family model; `dtype` is what the checkpoint stores, when it says so."""

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
    attention_bias: bool = False
    mlp_bias: bool = False
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
        if self.head_dim % 2:
            raise invalid(f"the model's head_dim is {self.head_dim}: rotary embedding needs pairs")


def invalid(sentence: str) -> ModelError:
    """The files are damaged or contradict themselves."""
    return ModelError(StartupFailure.MODEL_INVALID, sentence)


def unsupported(sentence: str) -> ModelError:
    """The files are fine, but this version cannot run them."""
    return ModelError(StartupFailure.MODEL_UNSUPPORTED, sentence)


def unsupported_architecture(name: str) -> ModelError:
    """Says what was found and what would run."""
    return unsupported(
        f"the architecture {name} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """From a Hugging Face config.json; both the old `rope_scaling` and `rope_parameters`."""
    architectures = raw.get("architectures") or [raw.get("model_type", "unnamed")]
    if not isinstance(architectures, list):
        raise invalid(f"the model's architectures is {architectures!r}: a list is needed")
    architecture = str(architectures[0])
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise unsupported_architecture(architecture)
    if raw.get("hidden_act", "silu") != "silu":
        raise unsupported(f"the activation {raw['hidden_act']} is not supported; supported: silu")
    if quantization := _mapping(raw, "quantization_config"):
        method = quantization.get("quant_method", "an unnamed method")
        raise unsupported(
            f"checkpoints quantised with {method} are not supported in safetensors form: "
            "use an unquantised checkpoint or a GGUF file"
        )
    hidden_size, num_heads = _integer(raw, "hidden_size"), _integer(raw, "num_attention_heads")
    rope = _mapping(raw, "rope_parameters")
    max_positions = _integer(raw, "max_position_embeddings", 2048)
    return ModelConfig(
        architecture=architecture,
        num_layers=_integer(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=_integer(raw, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_integer(raw, "num_key_value_heads", num_heads),
        head_dim=_integer(raw, "head_dim", hidden_size // max(num_heads, 1)),
        vocab_size=_integer(raw, "vocab_size"),
        max_positions=max_positions,
        norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        rope_theta=_number(rope, "rope_theta", _number(raw, "rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(rope or _mapping(raw, "rope_scaling"), max_positions),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        dtype=raw.get("dtype") or raw.get("torch_dtype"),
    )


def config_from_gguf(metadata: Mapping[str, Any], rope_factors: tuple[float, ...]) -> ModelConfig:
    """From a GGUF file's metadata; rope_factors: its tensor `rope_freqs.weight`, else empty."""
    architecture = str(metadata.get("general.architecture", "unnamed"))
    if architecture != "llama":
        raise unsupported(
            f"the GGUF architecture {architecture} is not supported; supported: llama"
        )
    values = {
        key.removeprefix("llama."): value
        for key, value in metadata.items()
        if key.startswith("llama.")
    }
    if values.get("expert_count"):
        raise unsupported("mixture-of-experts GGUF files are not supported")
    hidden_size, num_heads = (
        _integer(values, "embedding_length"),
        _integer(values, "attention.head_count"),
    )
    head_dim = _integer(values, "attention.key_length", hidden_size // max(num_heads, 1))
    for name in ("attention.value_length", "rope.dimension_count"):
        if _integer(values, name, head_dim) != head_dim:
            raise unsupported(f"a {name} that differs from the head's {head_dim} is not supported")
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    return ModelConfig(
        architecture="LlamaForCausalLM",
        num_layers=_integer(values, "block_count"),
        hidden_size=hidden_size,
        intermediate_size=_integer(values, "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=_integer(values, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_integer(values, "vocab_size", len(tokens)),
        max_positions=_integer(values, "context_length"),
        norm_eps=_number(values, "attention.layer_norm_rms_epsilon", 1e-5),
        rope_theta=_number(values, "rope.freq_base", 10_000.0),
        rope_scaling=_gguf_rope_scaling(values, rope_factors),
        tied_embeddings=False,
    )


def _rope_scaling(raw: Mapping[str, Any], max_positions: int) -> RopeScaling:
    kind = str(raw.get("rope_type") or raw.get("type") or "default")
    if kind not in ("default", "linear", "llama3"):
        raise unsupported(
            f"rope scaling {kind} is not supported; supported: default, linear, llama3"
        )
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(RopeKind.LINEAR, _number(raw, "factor"))
    return RopeScaling(
        RopeKind.LLAMA3,
        _number(raw, "factor"),
        _number(raw, "low_freq_factor"),
        _number(raw, "high_freq_factor"),
        _integer(raw, "original_max_position_embeddings", max_positions),
    )


def _gguf_rope_scaling(values: Mapping[str, Any], factors: tuple[float, ...]) -> RopeScaling:
    kind = str(values.get("rope.scaling.type", "none"))
    if kind not in ("none", "linear"):
        raise unsupported(f"rope scaling {kind} is not supported; supported: none, linear")
    factor = _number(values, "rope.scaling.factor", 1.0)
    if factors:
        if factor != 1.0:
            raise unsupported("rope factors together with a rope scaling factor are not supported")
        return RopeScaling(RopeKind.FACTORS, factors=factors)
    return RopeScaling(RopeKind.LINEAR, factor) if kind == "linear" else RopeScaling()


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name) or {}
    if not isinstance(value, dict):
        raise invalid(f"the model's {name} is {value!r}: an object is needed")
    return value


def _number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"the model's {name} is {value!r}: a number is needed")
    return float(value)


def _integer(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"the model's {name} is {value!r}: an integer is needed")
    return value
