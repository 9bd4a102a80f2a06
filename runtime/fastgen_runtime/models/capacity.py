"""How much a replica can hold: the arithmetic of its memory, and what `Auto` settings mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_runtime.models.architectures import tensor_names
from fastgen_runtime.models.model_config import ModelConfig
from fastgen_runtime.startup_error import StartupError

_FAST_BFLOAT16: Final = {"avx512_bf16", "amx_bf16"}
WEIGHT_GROUP: Final = 128
"""Inputs that share a scale, where weights are held in 8 bits."""
_SCALE_BYTES: Final = 4
_ROUNDING_COPIES: Final = 2
"""Of a layer's weights in 8 bits while they are laid out for the op."""
_ROUNDING_BYTES: Final = 16 << 20
"""For the part of a layer that is in float32 while it is rounded, a few times."""
_MARGIN_BYTES: Final = 320 << 20
"""For the front process, about 160 MiB, and what the allocator keeps for itself."""


def model_length(config: ModelConfig, wanted: int | None) -> int:
    """Tokens of the longest request; raises StartupError beyond what the model was trained for."""
    if wanted is not None and wanted > config.max_positions:
        raise StartupError(
            StartupFailure.CONFIG_INVALID,
            f"maxModelLength is {wanted}, but the model knows {config.max_positions} positions",
        )
    return wanted or config.max_positions


def resolve_dtype(wanted: DType, cpu_flags: frozenset[str], *, on_gpu: bool = False) -> DType:
    """Auto is BFloat16 on GPUs, and on CPUs that multiply it natively; else Float32, which is then
    faster."""
    if wanted is not DType.AUTO:
        return wanted
    return DType.BFLOAT16 if on_gpu or cpu_flags & _FAST_BFLOAT16 else DType.FLOAT32


class Packing(StrEnum):
    """How linear layers are kept once they are loaded."""

    NONE = "none"
    """As they were read."""
    LAYERS = "layers"
    """Each in a copy of another order, so that a tied embedding is there twice."""
    STEP = "step"
    """In the order of the whole-step op, which reads a tied embedding's rows from it where that is
    not rounded, and whose activations are float32 whatever the weights are."""


def activation_item_bytes(packing: Packing, item_bytes: int) -> int:
    """item_bytes: of weights and cache."""
    return 4 if packing is Packing.STEP else item_bytes


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """resident: of the weights once they are loaded. largest: of one layer that is being packed,
    which is there twice for a moment."""

    resident: int
    largest: int


def weight_bytes(
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    item_bytes: int,
    *,
    packing: Packing,
    ranks: int = 1,
    quantized: bool = False,
) -> WeightBytes:
    """What the checkpoint's tensors become on a rank. config: the rank's, shapes: of the whole.

    All matrices of layers count as split, also those of key/value heads that ranks share.
    quantized: they and the output layer, which each rank has whole, are held in 8 bits, with a
    float32 scale for each group; a tied embedding is there beside it.
    """
    names = tensor_names(config)
    head = f"{names.head}.weight"
    embedding = config.vocab_size * (config.embedding_size or config.hidden_size)
    is_shared = config.tied_embeddings and packing is not Packing.LAYERS and not quantized
    linear, others = 0 if is_shared else embedding, 0
    for name, shape in shapes.items():
        if name.endswith((head, *names.ignored)):
            continue
        if _is_split(name, shape, names.layers):
            linear += math.prod(shape) // ranks
        else:
            others += math.prod(shape)
    largest = max(embedding, _largest_layer(config))
    if quantized:
        held = linear + linear * _SCALE_BYTES // WEIGHT_GROUP
        loading = largest * (item_bytes + _ROUNDING_COPIES) + _ROUNDING_BYTES
    else:
        held = linear * item_bytes
        loading = 0 if packing is Packing.NONE else largest * item_bytes
    return WeightBytes(others * item_bytes + held, loading)


def _largest_layer(config: ModelConfig) -> int:
    """Weights of the largest matrix of a layer, without experts."""
    inner = config.intermediate_size * (1 + config.gated)
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return config.hidden_size * max(inner, heads)


def _is_split(name: str, shape: tuple[int, ...], layers: str) -> bool:
    """Whether a tensor is a matrix of a layer."""
    return len(shape) > 1 and f".{layers}" in f".{name}"


def block_bytes(config: ModelConfig, block_size: int, item_bytes: int) -> int:
    """Keys and values of a block's tokens in all layers."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return per_token * block_size * item_bytes


def num_blocks_for(
    available_bytes: int, block_bytes: int, block_size: int, longest: int, most_requests: int
) -> int:
    """Blocks of the cache: as many as fit, at most what all requests at full length need.

    Raises StartupError when not even one longest request fits.
    """
    blocks_per_request = -(-longest // block_size)
    fitting = max(0, available_bytes) // block_bytes
    if fitting < blocks_per_request:
        raise StartupError(
            StartupFailure.OUT_OF_MEMORY,
            f"a request of {longest} tokens needs {mib(blocks_per_request * block_bytes)} of "
            f"cache, and {mib(max(0, available_bytes))} are left beside the weights: raise the "
            "memory limit or lower maxModelLength",
        )
    return min(fitting, blocks_per_request * most_requests)


def activation_bytes(config: ModelConfig, max_tokens: int, max_rows: int, item_bytes: int) -> int:
    """Most that a step holds at once: hidden states, the widest layer's, logits in sampling."""
    per_token = 4 * config.hidden_size + 3 * config.intermediate_size
    per_token += 3 * config.head_dim * (config.num_heads + 2 * config.num_kv_heads)
    if config.experts:  # a token is there, in, within and out, once for each of its experts
        width, within = config.hidden_size, config.experts.intermediate_size
        per_token += config.experts.per_token * (2 * width + max(4 * width, within))
        per_token += config.experts.count
    return max_tokens * per_token * item_bytes + max_rows * config.vocab_size * (item_bytes + 8)


def cache_bytes(
    limit_bytes: int | None,
    available_bytes: int,
    resident_bytes: int,
    memory_percent: int,
    activations_bytes: int,
) -> int:
    """What the cache may take of the control group's limit, or of the machine, when less is free.

    available_bytes: what the machine could still give. resident_bytes: what this process, its
    weights included, holds already. May be negative.
    """
    machine = resident_bytes + available_bytes
    total = machine if limit_bytes is None else min(machine, limit_bytes)
    return total * memory_percent // 100 - resident_bytes - activations_bytes - _MARGIN_BYTES


def mib(size: int) -> str:
    """For sentences."""
    return f"{size / (1 << 20):.0f} MiB"
