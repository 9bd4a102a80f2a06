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
from fastgen_runtime.capacity import (
    activation_bytes,
    cache_bytes,
    model_length,
    num_blocks_for,
    resolve_dtype,
)
from fastgen_runtime.checkpoint import Checkpoint
from fastgen_runtime.model import Inputs, Model
from fastgen_runtime.model_config import ModelConfig
from fastgen_runtime.sampler import draw_for
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.step import Chunk, ChunkResult, Step
from fastgen_runtime.weights import load_weights

_DTYPES: Final = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}


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

    def run(self, step: Step) -> tuple[ChunkResult, ...]:
        """One forward pass and what each chunk brought.

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
        result = [ChunkResult()] * len(chunks)
        for row, token in zip(wanted, tokens, strict=True):
            result[order[row]] = ChunkResult(token)
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
            attention_plans={
                window: self._kernels.plan_attention(
                    batch, self._token_bytes, self.cache.dtype, self.cache.device, window
                )
                for window in self._config.distinct_windows
            },
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


def _blocks_in_memory(
    model: ModelConfig, config: RunnerConfig, length: int, dtype: torch.dtype
) -> int:
    """Blocks that there is memory for, now that the weights are loaded."""
    available = cache_bytes(
        cores.memory_limit_bytes(),
        cores.memory_available_bytes(),
        cores.resident_bytes(),
        config.memory_percent,
        activation_bytes(
            model, config.max_step_tokens, config.max_concurrent_requests, dtype.itemsize
        ),
    )
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
    return num_blocks_for(
        available,
        token_bytes * config.block_size,
        config.block_size,
        length,
        config.max_concurrent_requests,
    )


def _rank(chunk: Chunk) -> tuple[bool, int]:
    return len(chunk.token_ids) > 1, chunk.start + len(chunk.token_ids)
