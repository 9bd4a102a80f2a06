"""Runs steps: a model, its paged cache and the sampler on one device."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels
from fastgen_kernels.ragged import Integers, RaggedBatch
from fastgen_runtime.device.forward import Forward
from fastgen_runtime.device.loading import Loader
from fastgen_runtime.device.ranks import Ranks
from fastgen_runtime.device.sampler import draws_of
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.runner_config import RunnerConfig
from fastgen_runtime.engine.step import Chunk, ChunkResult, Sampling, Step, TokenLogprobs
from fastgen_runtime.models.checkpoint import Checkpoint
from fastgen_runtime.models.model_config import ModelConfig

__all__ = ["Runner", "RunnerConfig"]

_NOT_FINITE: Final = ChunkResult(
    failed="the model computed what is no finite number; its weights may be damaged, "
    "or need a dtype with larger numbers"
)
_SLICE_BYTES: Final = 32 << 20
"""Logits that the log probabilities of a prompt take at a time."""


class Runner:
    """Not thread-safe: one step at a time."""

    def __init__(
        self,
        forward: Forward,
        config: ModelConfig,
        kernels: Kernels,
        cache: Tensor,
        vocabulary: int | None = None,
        ranks: Ranks | None = None,
        step_tokens: int | None = None,
    ) -> None:
        """forward: of this cache [layers, 2, blocks, block size, kv heads, D].

        vocabulary: see `RunnerConfig`. ranks: the others that compute, when this is rank 0.
        step_tokens: of the largest step that memory was planned for; None: nobody planned.
        """
        self.step_tokens = step_tokens
        self._forward = forward
        self._config = config
        self._kernels = kernels
        self._vocabulary = vocabulary
        self._ranks = ranks
        self.cache = cache

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: RunnerConfig) -> "Runner":
        """Reads the weights and reserves the cache; starts the other ranks, which do the same.

        Raises StartupError.
        """
        loader = Loader(checkpoint, config)
        if config.num_blocks is None:
            loader.preflight()
        if config.tensor_parallel_size == 1:
            forward_over = loader.load()
            num_blocks = config.num_blocks or loader.num_blocks([cores.resident_bytes()])
            cache = loader.cache(num_blocks)
            return cls(
                forward_over(cache), loader.model_config, loader.kernels, cache,
                config.vocabulary, None, loader.step_tokens,
            )  # fmt: skip
        ranks = Ranks.start(checkpoint.path, config, loader.device)
        try:
            forward_over = loader.load(ranks.add_up)
            others = ranks.wait_until_loaded()
            residents = [cores.resident_bytes(), *others]
            num_blocks = config.num_blocks or loader.num_blocks(residents)
            cache = loader.cache(num_blocks)
            ranks.begin(num_blocks)
        except BaseException:
            ranks.close()
            raise
        return cls(
            forward_over(cache), loader.model_config, loader.kernels, cache,
            config.vocabulary, ranks, loader.step_tokens,
        )  # fmt: skip

    def check_ranks(self) -> None:
        """Raises RankError when another rank has ended; else a step says so."""
        if self._ranks is not None:
            self._ranks.check()

    def close(self) -> None:
        """Ends the other ranks and threads; no step can be run any more."""
        self._forward.close()
        if self._ranks is not None:
            self._ranks.close()

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
            _drawn_rows(chunks, wanted, ends),
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
            told_logprobs = self._prompt_logprobs(chunks[row], piece)
            results[row] = (
                _NOT_FINITE
                if told_logprobs is None
                else replace(results[row], prompt_logprobs=told_logprobs)
            )
        placed = {index: results[row] for row, index in enumerate(order)}
        return tuple(placed[index] for index in range(len(order)))

    def logits(self, chunks: list[Chunk], wanted: list[int]) -> Tensor:
        """Logits [len(wanted), vocabulary] after the last token of the chunks at `wanted`."""
        ends = np.cumsum([len(chunk.token_ids) for chunk in chunks])
        return self._logits(self._hidden(chunks, ends[wanted] - 1))

    def _draw(self, chunks: list[Chunk], wanted: list[int], hidden: Tensor) -> list[ChunkResult]:
        """The next tokens of the chunks at `wanted`, whose `_drawn_rows` of states are given."""
        drawn = [
            (sampling, draws_of(chunk, sampling))
            for chunk in (chunks[row] for row in wanted)
            if (sampling := chunk.sampling) is not None
        ]
        draws = [draw for _, several in drawn for draw in several]
        if not draws:
            return []
        logits = self._logits(hidden)
        tokens = self._kernels.sample(logits, draws, self._vocabulary)
        firsts = accumulate((len(several) for _, several in drawn), initial=0)
        # Chunks whose log probabilities are told have no guesses.
        told = self._told(
            logits, tokens, [sampling for sampling, several in drawn for _ in several]
        )
        return [_result(tokens[first:end], told.get(first)) for first, end in pairwise(firsts)]

    def _told(
        self, logits: Tensor, tokens: list[int | None], samplings: Sequence[Sampling | None]
    ) -> dict[int, TokenLogprobs]:
        """Log probabilities of the rows that want them, in one call: each waits for the device."""
        wanted = {
            row: (token, sampling.num_logprobs)
            for row, (token, sampling) in enumerate(zip(tokens, samplings, strict=True))
            if token is not None and sampling is not None and sampling.num_logprobs is not None
        }
        if not wanted:
            return {}
        rows = torch.tensor(list(wanted), device=logits.device)
        chosen = [token for token, _ in wanted.values()]
        most = max(num_top for _, num_top in wanted.values())
        # The likeliest come in order, so fewer of them are the first.
        return {
            row: replace(told, top=told.top[:num_top])
            for (row, (_, num_top)), told in zip(
                wanted.items(), self._logprobs(logits[rows], chosen, most), strict=True
            )
        }

    def _prompt_logprobs(self, chunk: Chunk, hidden: Tensor) -> tuple[TokenLogprobs, ...] | None:
        """Of the chunk's targets; few rows at once: logits are larger than hidden states.

        None where the largest logit of a row is no finite number.
        """
        size = max(1, _SLICE_BYTES // (4 * self._config.vocab_size))
        told: list[TokenLogprobs] = []
        for start in range(0, len(chunk.targets), size):
            logits = self._logits(hidden[start : start + size])
            if not logits.amax(-1).isfinite().all():
                return None
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
        return self._forward.lm_head(hidden)

    def _hidden(self, chunks: list[Chunk], rows: Integers) -> Tensor:
        """One forward pass: hidden states [len(rows), hidden size] of these rows of the step.

        Raises RankError when another rank is lost.
        """
        self._check(chunks)
        batch = RaggedBatch.of(
            [chunk.start for chunk in chunks],
            [len(chunk.token_ids) for chunk in chunks],
            [chunk.block_ids for chunk in chunks],
            self.block_size,
        )
        token_ids = np.array([token for chunk in chunks for token in chunk.token_ids])
        if self._ranks is None:
            return self.compute(batch, token_ids, rows)
        try:
            self._ranks.forward(batch, token_ids)
            return self.compute(batch, token_ids, rows)
        except BaseException:  # the others are in the middle of a step that nobody will end
            self._ranks.close()
            raise

    @torch.inference_mode()
    def compute(self, batch: RaggedBatch, token_ids: Integers, rows: Integers) -> Tensor:
        """A forward pass of token ids [T], as `_hidden`; what other ranks do of a step."""
        return self._forward.hidden(batch, token_ids, rows)

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


def _drawn_rows(chunks: list[Chunk], wanted: list[int], ends: Integers) -> Integers:
    """The rows of a step after which tokens are drawn: as `draws_of`, for each of `wanted`."""
    counts = np.array([1 + chunks[row].num_drafted for row in wanted], np.int64)
    return np.repeat(ends[wanted] - np.cumsum(counts), counts) + np.arange(counts.sum())


def _result(tokens: Sequence[int | None], logprobs: TokenLogprobs | None) -> ChunkResult:
    """tokens: a chunk's, in order; what comes after one that is no finite number says nothing."""
    if tokens[0] is None:
        return _NOT_FINITE
    further: list[int] = []
    for token in tokens[1:]:
        if token is None:
            break
        further.append(token)
    return ChunkResult(tokens[0], logprobs, further_token_ids=further)


def _rank(chunk: Chunk) -> tuple[bool, int]:
    return len(chunk.token_ids) > 1, chunk.start + len(chunk.token_ids)
