"""Angles of rotary position embedding (Su et al., 2021), scaled for longer contexts."""

import math

import torch
from torch import Tensor

from fastgen_runtime.models.model_config import ModelConfig, RopeKind, RopeScaling


def angle_tables(config: ModelConfig, max_positions: int) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines [max_positions, rotated / 2] in float32, scaled; None: nothing is rotated.

    max_positions: tokens of the longest request, by which DYNAMIC and LONGROPE choose theirs.
    """
    if not config.rotated:
        return None
    scaling = config.rope_scaling
    turned = frequencies(config.rotated, config.rope_theta, scaling, max_positions)
    angles = torch.outer(torch.arange(max_positions).float(), turned)
    factor = attention_factor(scaling)
    return angles.cos() * factor, angles.sin() * factor


def frequencies(rotary_dim: int, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    """[rotary_dim / 2] angle per position of each pair, in float32.

    length: tokens of the longest context that they are for. DYNAMIC and LONGROPE depend on it, so
    keys and queries of one request must have been rotated for the same length.
    """
    exponents = torch.arange(0, rotary_dim, 2).float() / rotary_dim
    match scaling.kind:
        case RopeKind.DEFAULT:
            return 1 / theta**exponents
        case RopeKind.LINEAR:
            return 1 / theta**exponents / scaling.factor
        case RopeKind.FACTORS:
            return 1 / theta**exponents / torch.tensor(scaling.factors)
        case RopeKind.DYNAMIC:
            return 1 / _dynamic_theta(rotary_dim, theta, scaling, length) ** exponents
        case RopeKind.LLAMA3:
            return _llama3(1 / theta**exponents, scaling)
        case RopeKind.YARN:
            return _yarn(theta**exponents, theta, scaling)
        case RopeKind.LONGROPE:
            beyond = length > scaling.original_max_positions
            factors = scaling.long_factors if beyond else scaling.factors
            return 1 / (torch.tensor(factors) * theta**exponents)


def attention_factor(scaling: RopeScaling) -> float:
    """What cosines and sines are multiplied by."""
    factor = scaling.factor
    match scaling.kind:
        case RopeKind.YARN | RopeKind.LONGROPE if scaling.attention_factor is not None:
            return scaling.attention_factor
        case RopeKind.YARN if scaling.mscale and scaling.mscale_all_dim:
            return _yarn_scale(factor, scaling.mscale) / _yarn_scale(factor, scaling.mscale_all_dim)
        case RopeKind.YARN:
            return _yarn_scale(factor, 1)
        case RopeKind.LONGROPE if factor > 1:  # Ding et al., 2024, section 3.4
            return math.sqrt(1 + math.log(factor) / math.log(scaling.original_max_positions))
        case _:
            return 1.0


def _dynamic_theta(rotary_dim: int, theta: float, scaling: RopeScaling, length: int) -> float:
    """The base at which the slowest pair turns as under LINEAR by the growth of the length."""
    original = scaling.original_max_positions
    growth = scaling.factor * max(length, original) / original - (scaling.factor - 1)
    return float(theta * growth ** (rotary_dim / (rotary_dim - 2)))


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Keeps short wavelengths, divides long ones by the factor, blends in between (Llama 3.1)."""
    wavelengths = 2 * math.pi / plain
    turns = scaling.original_max_positions / wavelengths
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = share.clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn(wavelengths: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """As LLAMA3, blended over the index of the pair (Peng et al., 2023, section 3.2).

    wavelengths: [pairs] in 2π positions.
    """
    pairs = len(wavelengths)

    def pair_of(turns: float) -> float:
        """The pair that makes this many turns within the original length."""
        ratio = scaling.original_max_positions / (turns * 2 * math.pi)
        return pairs * math.log(ratio) / math.log(theta)

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    if first == last:
        last += 0.001
    divided = ((torch.arange(pairs).float() - first) / (last - first)).clamp(0, 1)
    return divided / (scaling.factor * wavelengths) + (1 - divided) / wavelengths


def _yarn_scale(factor: float, mscale: float) -> float:
    """Peng et al., 2023, section 3.4; mscale: DeepSeek-V2's."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0
