"""How much a replica can hold: the arithmetic of its memory, and what `Auto` settings mean."""

from typing import Final

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_runtime.model_config import ModelConfig
from fastgen_runtime.startup_error import StartupError

_FAST_BFLOAT16: Final = {"avx512_bf16", "amx_bf16"}
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


def resolve_dtype(wanted: DType, cpu_flags: frozenset[str]) -> DType:
    """Auto is BFloat16 where the CPU multiplies it natively, else Float32, which is then faster."""
    if wanted is not DType.AUTO:
        return wanted
    return DType.BFLOAT16 if cpu_flags & _FAST_BFLOAT16 else DType.FLOAT32


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
            f"a request of {longest} tokens needs {_mib(blocks_per_request * block_bytes)} of "
            f"cache, and {_mib(max(0, available_bytes))} are left beside the weights: raise the "
            "memory limit or lower maxModelLength",
        )
    return min(fitting, blocks_per_request * most_requests)


def activation_bytes(config: ModelConfig, max_tokens: int, max_rows: int, item_bytes: int) -> int:
    """Most that a step holds at once: hidden states, the widest layer's, logits in sampling."""
    per_token = 4 * config.hidden_size + 3 * config.intermediate_size
    per_token += 3 * config.head_dim * (config.num_heads + 2 * config.num_kv_heads)
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


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
