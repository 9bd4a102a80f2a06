"""What a checkpoint says about rotary position embedding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastgen_runtime.models.config_values import flag, integer, mapping, number, positive_numbers
from fastgen_runtime.models.model_config import RopeKind, RopeScaling, invalid, unsupported

_KINDS: Final = {kind.value: kind for kind in RopeKind if kind is not RopeKind.FACTORS} | {
    "su": RopeKind.LONGROPE,
}


@dataclass(frozen=True, slots=True)
class Rope:
    """rotary_dim: how many of a head's dimensions are rotated. max_positions: after scaling."""

    theta: float
    scaling: RopeScaling
    rotary_dim: int
    max_positions: int


def rope_from_hf(
    raw: Mapping[str, Any],
    head_dim: int,
    *,
    max_positions: int,
    default_theta: float = 10_000.0,
    theta_name: str = "rope_theta",
    default_share: float = 1.0,
    share_name: str = "partial_rotary_factor",
) -> Rope:
    """From a config.json; both the old `rope_scaling` and `rope_parameters`; raises ModelError.

    max_positions: the configuration's. theta_name, share_name: where old files keep the base and
    the share of a head that is rotated.
    """
    rope = mapping(raw, "rope_scaling") or mapping(raw, "rope_parameters")
    if any(isinstance(value, dict) for value in rope.values()):
        raise unsupported("rotary embeddings that differ between layers are not supported")
    theta = number(rope, "rope_theta", number(raw, theta_name, default_theta))
    if theta <= 1:
        raise invalid(f"the model's rope_theta is {theta}: it must be above 1")
    share = number(rope, "partial_rotary_factor", number(raw, share_name, default_share))
    rotary_dim = int(head_dim * share)
    scaling = _scaling(rope, raw, max_positions)
    if scaling.kind is RopeKind.LONGROPE:
        for name, factors in (("short", scaling.factors), ("long", scaling.long_factors)):
            if len(factors) != rotary_dim // 2:
                raise invalid(
                    f"the model's {name}_factor has {len(factors)} numbers for {rotary_dim} "
                    "rotated dimensions: one for each pair is needed"
                )
    return Rope(theta, scaling, rotary_dim, _scaled_positions(scaling, max_positions))


def _scaled_positions(scaling: RopeScaling, max_positions: int) -> int:
    """Positions of the scaled model.

    `max_position_embeddings` is that already, but for dynamic scaling, which scales it, and for
    yarn, where files differ.
    """
    if scaling.kind in (RopeKind.DYNAMIC, RopeKind.YARN):
        return max(max_positions, int(scaling.original_max_positions * scaling.factor))
    return max_positions


def _scaling(rope: Mapping[str, Any], raw: Mapping[str, Any], max_positions: int) -> RopeScaling:
    name = str(rope.get("rope_type") or rope.get("type") or "default")
    if name not in _KINDS:
        raise unsupported(
            f"rope scaling {name} is not supported; supported: {', '.join(sorted(_KINDS))}"
        )
    kind = _KINDS[name]
    if raw.get("model_type") == "phi3" and kind is RopeKind.YARN:
        kind = RopeKind.LONGROPE  # what Phi-3's first files call it
    # Phi-3 keeps its original length beside the scaling.
    original = integer(
        raw,
        "original_max_position_embeddings",
        integer(rope, "original_max_position_embeddings", max_positions),
    )
    if original < 1:
        raise invalid(f"the model's original_max_position_embeddings is {original}, below 1")
    match kind:
        case RopeKind.DEFAULT | RopeKind.FACTORS:
            return RopeScaling()
        case RopeKind.LINEAR:
            return RopeScaling(kind, _positive(rope, "factor"))
        case RopeKind.DYNAMIC:
            factor = _positive(rope, "factor")
            return RopeScaling(kind, factor, original_max_positions=max_positions)
        case RopeKind.LLAMA3:
            return _llama3(rope, original)
        case RopeKind.LONGROPE:
            return RopeScaling(
                kind,
                _positive(rope, "factor", max_positions / original),
                original_max_positions=original,
                factors=positive_numbers(rope, "short_factor"),
                long_factors=positive_numbers(rope, "long_factor"),
                attention_factor=_optional(rope, "attention_factor"),
            )
        case RopeKind.YARN:
            return _yarn(rope, original, max_positions)


def _llama3(rope: Mapping[str, Any], original: int) -> RopeScaling:
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    if low >= high:
        raise invalid(f"the model's low_freq_factor {low} is not below its high_freq_factor {high}")
    return RopeScaling(RopeKind.LLAMA3, _positive(rope, "factor"), low, high, original)


def _yarn(rope: Mapping[str, Any], original: int, max_positions: int) -> RopeScaling:
    return RopeScaling(
        RopeKind.YARN,
        _positive(rope, "factor", max_positions / original),
        original_max_positions=original,
        attention_factor=_optional(rope, "attention_factor"),
        beta_fast=_positive(rope, "beta_fast", 32.0),
        beta_slow=_positive(rope, "beta_slow", 1.0),
        mscale=number(rope, "mscale", 0.0),
        mscale_all_dim=number(rope, "mscale_all_dim", 0.0),
        truncate=flag(rope, "truncate", True),
    )


def _positive(rope: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = number(rope, name, default)
    if value <= 0:
        raise invalid(f"the model's {name} is {value}: it must be above 0")
    return value


def _optional(rope: Mapping[str, Any], name: str) -> float | None:
    return None if rope.get(name) is None else number(rope, name)


def rope_scaling_from_gguf(values: Mapping[str, Any], factors: tuple[float, ...]) -> RopeScaling:
    """From GGUF metadata without its architecture's prefix; raises ModelError."""
    kind = str(values.get("rope.scaling.type", "none"))
    if kind not in ("none", "linear"):
        raise unsupported(f"rope scaling {kind} is not supported; supported: none, linear")
    factor = number(values, "rope.scaling.factor", 1.0)
    if factors:
        if factor != 1.0:
            raise unsupported("rope factors together with a rope scaling factor are not supported")
        return RopeScaling(RopeKind.FACTORS, factors=factors)
    return RopeScaling(RopeKind.LINEAR, factor) if kind == "linear" else RopeScaling()
