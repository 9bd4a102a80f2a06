"""Runs steps: a model, its paged cache and the sampler on one device."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_kernels.dispatch import Device, Kernels, kernels_for
from fastgen_kernels.ragged import RaggedBatch
from fastgen_runtime import cores
from fastgen_runtime.checkpoint import Checkpoint
from fastgen_runtime.model import Inputs, Model
from fastgen_runtime.model_config import ModelConfig
from fastgen_runtime.sampler import draw_for
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.step import Chunk, Step
from fastgen_runtime.weights import load_weights

_DTYPES: Final = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}
_FAST_BFLOAT16: Final = {"avx512_bf16", "amx_bf16"}
_MARGIN_BYTES: Final = 128 << 20
"""For what torch and the allocator hold besides weights, cache and activations."""


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """num_blocks: when None, the cache takes what `memory_percent` of the memory leaves it.

    max_model_length: tokens of the longest request; None: what the model was trained for.
    max_step_tokens: most tokens of a step. threads: None: what the CPU quota allows.
    """

    dtype: DType = DType.AUTO
    block_size: int = 64
    max_model_length: int | None = None
    max_concurrent_requests: int = 256
    max_step_tokens: int = 2048
    memory_percent: int = 90
    num_blocks: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        allowed = {
            "block_size": range(1, 1025),
            "max_concurrent_requests": range(1, 1 << 20),
            "max_step_tokens": range(1, 1 << 20),
            "memory_percent": range(1, 101),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise StartupError(
                    StartupFailure.CONFIG_INVALID,
                    f"{name} is {getattr(self, name)}: "
                    f"it must be between {values[0]} and {values[-1]}",
                )


class Runner:
    """Not thread-safe: one step at a time."""

    def __init__(self, model: Model, config: ModelConfig, kernels: Kernels, cache: Tensor) -> None:
        """cache: [layers, 2, blocks, block size, kv heads, D]."""
        self._model = model
        self._config = config
        self._kernels = kernels
        self.cache = cache
        self._slots = cache.flatten(2, 3)
        self._token_bytes = cache[0, :, 0, 0].numel() * cache.element_size()

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: RunnerConfig) -> "Runner":
        """Reads the weights and reserves the cache; raises StartupError."""
        torch.set_num_threads(config.threads or cores.available_threads())
        kernels, device = kernels_for(Device("cpu")), torch.device("cpu")
        model_config = checkpoint.config
        length = model_length(model_config, config.max_model_length)
        dtype = _DTYPES[resolve_dtype(config.dtype, cores.cpu_flags())]
        with torch.no_grad():
            weights = load_weights(model_config, checkpoint.tensors(), kernels, dtype, device)
            model = Model(model_config, weights, kernels, length)
        num_blocks = config.num_blocks or _blocks_in_memory(model_config, config, length, dtype)
        shape = (
            model_config.num_layers, 2, num_blocks, config.block_size,
            model_config.num_kv_heads, model_config.head_dim,
        )  # fmt: skip
        # Not zeroed: pages that no request has used yet cost no memory.
        cache = torch.empty(shape, dtype=dtype, device=device)
        return cls(model, model_config, kernels, cache)

    @property
    def num_blocks(self) -> int:
        return self.cache.shape[2]

    @property
    def block_size(self) -> int:
        return self.cache.shape[3]

    def run(self, step: Step) -> tuple[int | None, ...]:
        """One forward pass; for each chunk the token it chose, None where none was asked for.

        Raises ValueError for a chunk that is empty, that its block table does not cover, or whose
        tokens or blocks do not exist.
        """
        if not step.chunks:
            return ()
        # Decodes first, by context length: neighbours are attended to together.
        order = sorted(range(len(step.chunks)), key=lambda index: _rank(step.chunks[index]))
        chunks = [step.chunks[index] for index in order]
        wanted = [row for row, chunk in enumerate(chunks) if chunk.sampling is not None]
        logits = self.logits(chunks, wanted)
        draws = [
            draw_for(chunk.sampling, chunk.start + len(chunk.token_ids))
            for chunk in chunks
            if chunk.sampling is not None
        ]
        tokens = self._kernels.sample(logits, draws) if draws else []
        result: list[int | None] = [None] * len(chunks)
        for row, token in zip(wanted, tokens, strict=True):
            result[order[row]] = token
        return tuple(result)

    @torch.inference_mode()
    def logits(self, chunks: list[Chunk], wanted: list[int]) -> Tensor:
        """Logits [len(wanted), vocabulary] after the last token of the chunks at `wanted`."""
        self._check(chunks)
        batch = RaggedBatch.of(
            [chunk.start for chunk in chunks],
            [len(chunk.token_ids) for chunk in chunks],
            [chunk.block_ids for chunk in chunks],
            self.block_size,
        )
        last_rows = batch.first_rows + batch.lengths - 1
        inputs = Inputs(
            token_ids=torch.tensor([token for chunk in chunks for token in chunk.token_ids]),
            positions=torch.from_numpy(batch.positions),
            write_slots=torch.from_numpy(batch.write_slots),
            attention_plan=self._kernels.plan_attention(
                batch, self._token_bytes, self.cache.dtype, self.cache.device
            ),
            wanted_rows=torch.from_numpy(last_rows[np.array(wanted, np.int64)]),
        )
        return self._model.forward(inputs, self._slots)

    def _check(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if not chunk.token_ids:
                raise ValueError(f"request {chunk.request_id}: its chunk is empty")
            if not 0 <= min(chunk.token_ids) <= max(chunk.token_ids) < self._config.vocab_size:
                raise ValueError(
                    f"request {chunk.request_id}: token ids must be in "
                    f"0 … {self._config.vocab_size - 1}"
                )
            if not 0 <= min(chunk.block_ids) <= max(chunk.block_ids) < self.num_blocks:
                raise ValueError(f"request {chunk.request_id}: a block does not exist")


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


def _blocks_in_memory(
    model: ModelConfig, config: RunnerConfig, length: int, dtype: torch.dtype
) -> int:
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
    limit, resident = cores.memory_limit_bytes(), cores.resident_bytes()
    total = resident + cores.memory_available_bytes()
    usable = min(total, limit or total) * config.memory_percent // 100
    held = resident + _MARGIN_BYTES + activation_bytes(
        model, config.max_step_tokens, config.max_concurrent_requests, dtype.itemsize
    )  # fmt: skip
    return num_blocks_for(
        usable - held,
        token_bytes * config.block_size,
        config.block_size,
        length,
        config.max_concurrent_requests,
    )


def _rank(chunk: Chunk) -> tuple[bool, int]:
    return len(chunk.token_ids) > 1, chunk.start + len(chunk.token_ids)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
