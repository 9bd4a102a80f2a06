"""Runs steps: a model, its paged cache and the sampler on one device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_kernels.dispatch import Device, Kernels, kernels_for
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins.linear import can_pack
from fastgen_runtime import cores
from fastgen_runtime.capacity import (
    activation_bytes,
    block_bytes,
    cache_bytes,
    model_length,
    num_blocks_for,
    resolve_dtype,
)
from fastgen_runtime.checkpoint import Checkpoint
from fastgen_runtime.model import Inputs, Model
from fastgen_runtime.model_config import ModelConfig
from fastgen_runtime.preflight import Demand, offer_now, preflight
from fastgen_runtime.sampler import draw_of
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.step import Chunk, ChunkResult, Step, TokenLogprobs
from fastgen_runtime.weights import load_weights

_DTYPES: Final = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}
_SLICE_BYTES: Final = 32 << 20
"""Logits that the log probabilities of a prompt take at a time."""


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """num_blocks: when None, the cache takes what `memory_percent` of the memory leaves it.

    max_model_length: tokens of the longest request; None: what the model was trained for.
    max_step_tokens: most tokens of a step. threads: None: what the CPU quota allows. vocabulary:
    how many token ids the tokenizer has; the embedding's rows from there on are padding, and no
    request gets them. None: there is no padding.
    """

    dtype: DType = DType.AUTO
    block_size: int = 64
    max_model_length: int | None = None
    max_concurrent_requests: int = 256
    max_step_tokens: int = 2048
    memory_percent: int = 90
    num_blocks: int | None = None
    threads: int | None = None
    vocabulary: int | None = None

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

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        kernels: Kernels,
        cache: Tensor,
        vocabulary: int | None = None,
    ) -> None:
        """cache: [layers, 2, blocks, block size, kv heads, D]. vocabulary: see `RunnerConfig`."""
        self._model = model
        self._config = config
        self._kernels = kernels
        self._vocabulary = vocabulary
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
        resolved = resolve_dtype(config.dtype, cores.cpu_flags())
        dtype, tensors = _DTYPES[resolved], checkpoint.tensors()
        if config.num_blocks is None:
            demand = Demand(
                dtype=resolved,
                packs=can_pack(torch.empty(0, dtype=dtype, device=device)),
                longest=length,
                block_size=config.block_size,
                max_tokens=config.max_step_tokens,
                most_requests=config.max_concurrent_requests,
            )
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            preflight(model_config, shapes, demand, offer_now(config.memory_percent))
        with torch.no_grad():
            weights = load_weights(model_config, tensors, kernels, dtype, device)
            model = Model(model_config, weights, kernels, length)
        num_blocks = config.num_blocks or _blocks_in_memory(model_config, config, length, dtype)
        shape = (
            model_config.num_layers, 2, num_blocks, config.block_size,
            model_config.num_kv_heads, model_config.head_dim,
        )  # fmt: skip
        # Not zeroed: pages that no request has used yet cost no memory.
        cache = torch.empty(shape, dtype=dtype, device=device)
        return cls(model, model_config, kernels, cache, config.vocabulary)

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
        told = [row for row, chunk in enumerate(chunks) if chunk.num_prompt_logprobs is not None]
        ends = np.cumsum([len(chunk.token_ids) for chunk in chunks])
        rows = [
            ends[wanted] - 1,
            *(
                ends[row] - len(chunks[row].token_ids) + np.arange(len(chunks[row].targets))
                for row in told
            ),
        ]
        hidden = self._hidden(chunks, np.concatenate(rows))
        pieces = hidden.tensor_split(np.cumsum([len(part) for part in rows])[:-1].tolist())
        results = dict.fromkeys(range(len(chunks)), ChunkResult())
        results.update(zip(wanted, self._draw(chunks, wanted, pieces[0]), strict=True))
        for row, piece in zip(told, pieces[1:], strict=True):
            logprobs = self._prompt_logprobs(chunks[row], piece)
            results[row] = replace(results[row], prompt_logprobs=logprobs)
        placed = {index: results[row] for row, index in enumerate(order)}
        return tuple(placed[index] for index in range(len(order)))

    def logits(self, chunks: list[Chunk], wanted: list[int]) -> Tensor:
        """Logits [len(wanted), vocabulary] after the last token of the chunks at `wanted`."""
        ends = np.cumsum([len(chunk.token_ids) for chunk in chunks])
        return self._logits(self._hidden(chunks, ends[wanted] - 1))

    def _draw(self, chunks: list[Chunk], wanted: list[int], hidden: Tensor) -> list[ChunkResult]:
        """The next tokens of the chunks at `wanted`, whose last hidden states are given."""
        drawn = [(chunk, chunk.sampling) for chunk in (chunks[row] for row in wanted)]
        draws = [draw_of(chunk, sampling) for chunk, sampling in drawn if sampling is not None]
        if not draws:
            return []
        logits = self._logits(hidden)
        results = []
        tokens = self._kernels.sample(logits, draws, self._vocabulary)
        for row, (token, (_, sampling)) in enumerate(zip(tokens, drawn, strict=True)):
            logprobs = None
            if sampling is not None and sampling.num_logprobs is not None:
                (logprobs,) = self._logprobs(logits[row][None], [token], sampling.num_logprobs)
            results.append(ChunkResult(token, logprobs))
        return results

    def _prompt_logprobs(self, chunk: Chunk, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """Of the chunk's targets; few rows at once: logits are larger than hidden states."""
        size = max(1, _SLICE_BYTES // (4 * self._config.vocab_size))
        told: list[TokenLogprobs] = []
        for start in range(0, len(chunk.targets), size):
            logits = self._logits(hidden[start : start + size])
            targets = chunk.targets[start : start + size]
            told += self._logprobs(logits, targets, chunk.num_prompt_logprobs or 0)
        return tuple(told)

    def _logprobs(
        self, logits: Tensor, token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprobs]:
        rows = self._kernels.logprobs(logits, token_ids, num_top, self._vocabulary)
        return [
            TokenLogprobs(token, row.logprob, row.rank, row.top)
            for token, row in zip(token_ids, rows, strict=True)
        ]

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.lm_head(hidden)

    @torch.inference_mode()
    def _hidden(self, chunks: list[Chunk], rows: NDArray[np.int64]) -> Tensor:
        """One forward pass: hidden states [len(rows), hidden size] of these rows of the step."""
        self._check(chunks)
        batch = RaggedBatch.of(
            [chunk.start for chunk in chunks],
            [len(chunk.token_ids) for chunk in chunks],
            [chunk.block_ids for chunk in chunks],
            self.block_size,
        )
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
            wanted_rows=torch.from_numpy(rows),
        )
        return self._model.hidden(inputs, self._slots)

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
            if len(chunk.targets) > len(chunk.token_ids):
                raise ValueError(f"request {chunk.request_id}: more targets than tokens")


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
    return num_blocks_for(
        available,
        block_bytes(model, config.block_size, dtype.itemsize),
        config.block_size,
        length,
        config.max_concurrent_requests,
    )


def _rank(chunk: Chunk) -> tuple[bool, int]:
    return len(chunk.token_ids) > 1, chunk.start + len(chunk.token_ids)
