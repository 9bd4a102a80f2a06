"""What `gpu.py` measures: batches, shapes and aims. Nothing here needs a GPU, or torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch

ITEM_BYTES: Final = 2
"""Of bfloat16: weights, keys, values and queries."""
HEAD_SIZE: Final = 128
GROUP: Final = 4
"""Query heads that share keys, as in Llama 3."""
LARGE_BYTES: Final = 64e6
"""Of keys and values: from here on a launch's fixed time should not show."""
LARGE_AIM: Final = 0.80
LONG_AIM: Final = 0.90
PREFILL_AIM: Final = 350.0
"""TFLOP/s in bfloat16 for heads of 128 dimensions."""


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """contexts: of each request, its new token included. aim: least share of copy bandwidth."""

    name: str
    contexts: Sequence[int]
    num_kv_heads: int = 8
    aim: float | None = None

    @property
    def heads(self) -> Heads:
        return Heads(GROUP * self.num_kv_heads, self.num_kv_heads, HEAD_SIZE)

    @property
    def cache_bytes(self) -> int:
        """Of all keys and values that are read."""
        return sum(self.contexts) * self.heads.token_bytes(ITEM_BYTES)

    @property
    def is_even(self) -> bool:
        """Whether all requests are as long: what padded kernels are made for."""
        return len(set(self.contexts)) == 1


@dataclass(frozen=True, slots=True)
class PrefillCase:
    """chunks: (tokens before, new tokens) of each."""

    name: str
    chunks: Sequence[tuple[int, int]]
    num_kv_heads: int = 8
    aim: float | None = None

    @property
    def heads(self) -> Heads:
        return Heads(GROUP * self.num_kv_heads, self.num_kv_heads, HEAD_SIZE)

    @property
    def is_whole(self) -> bool:
        """Whether all are whole prompts of one length, which peers without a past can compute."""
        return len(set(self.chunks)) == 1 and self.chunks[0][0] == 0

    @property
    def operations(self) -> int:
        """Multiplications and additions over the keys that each query sees."""
        seen = sum(length * start + length * (length + 1) // 2 for start, length in self.chunks)
        return 4 * seen * self.heads.num_query * HEAD_SIZE


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama: tokens of its longest request are `length`."""

    num_layers: int = 32
    hidden: int = 4096
    inner: int = 14336
    num_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    vocabulary: int = 128_256
    length: int = 8192

    @property
    def step_parameters(self) -> int:
        """Weights that each step reads: all but the embedding's, of which it takes some rows."""
        qkv = self.hidden * (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        output = self.num_heads * self.head_size * self.hidden
        layer = qkv + output + 3 * self.hidden * self.inner
        return self.num_layers * layer + self.vocabulary * self.hidden

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_size * ITEM_BYTES

    def decode_floor_seconds(self, contexts: Sequence[int], bytes_per_second: float) -> float:
        """Of reading the weights and all contexts once."""
        weights = self.step_parameters * ITEM_BYTES
        return (weights + sum(contexts) * self.token_bytes) / bytes_per_second

    def prompt_floor_seconds(self, tokens: int, operations_per_second: float) -> float:
        """Of multiplying one prompt's tokens with the weights, the last one's with the head's."""
        head = self.vocabulary * self.hidden
        each = self.step_parameters - head
        return 2 * (each * tokens + head) / operations_per_second


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. rounds: of which the median counts. least_bytes: of the caches that
    take turns, so that no launch finds what the one before it read in the GPU's own cache.
    answers: of each client.
    """

    copy_bytes: int = 1 << 30
    matrix: int = 8192
    rounds: int = 20
    least_bytes: int = 1 << 29
    decode: Sequence[DecodeCase] = ()
    prefill: Sequence[PrefillCase] = ()
    model: ModelShape = field(default_factory=ModelShape)
    num_blocks: int = 2048
    block_size: int = 64
    step_context: int = 1024
    step_rows: Sequence[int] = (1, 8, 32)
    step_prompts: Sequence[int] = (512, 2048)
    clients: Sequence[int] = (1, 4, 16, 32)
    answers: int = 4
    prompt_tokens: int = 2600
    answer_tokens: int = 60
    most_step_tokens: int = 8192


_SKEWED: Final = np.random.default_rng(0).lognormal(0, 1, 64)
FULL: Final = Sizes(
    decode=(
        DecodeCase("64 of 2,048", [2048] * 64, aim=LARGE_AIM),
        DecodeCase("one of 131,072", [131_072], aim=LONG_AIM),
        DecodeCase("one of 131,072, one head", [131_072], 1, aim=LARGE_AIM),
        DecodeCase("512 + 4,096 + 16,384", [512, 4096, 16_384], aim=LARGE_AIM),
        DecodeCase("31 of 1,024 + 131,072", [1024] * 31 + [131_072], aim=LARGE_AIM),
        DecodeCase(
            "64 of any length + 32,768",
            [*np.round(_SKEWED / _SKEWED.sum() * 117_354).astype(int).tolist(), 32_768],
            aim=LARGE_AIM,
        ),
        DecodeCase("8 of 1,024", [1024] * 8),
    ),
    prefill=(
        PrefillCase("8 of 2,048", [(0, 2048)] * 8, aim=PREFILL_AIM),
        PrefillCase("one of 16,384", [(0, 16_384)], aim=PREFILL_AIM),
        PrefillCase("2,048 after 14,336", [(14_336, 2048)], aim=PREFILL_AIM),
        PrefillCase("512 after 3,584", [(3584, 512)]),
    ),
)
DRY: Final = Sizes(
    copy_bytes=1 << 16,
    matrix=64,
    rounds=1,
    least_bytes=1,
    decode=(DecodeCase("2 of 70", [70, 70], 1, aim=LARGE_AIM), DecodeCase("9 + 130", [9, 130], 1)),
    prefill=(PrefillCase("2 of 20", [(0, 20)] * 2, 1), PrefillCase("9 after 30", [(30, 9)], 1)),
    model=ModelShape(2, 64, 96, 4, 2, 16, 200, 256),
    num_blocks=64,
    block_size=16,
    step_context=20,
    step_rows=(1, 3),
    step_prompts=(24,),
    clients=(1, 3),
    answers=2,
    prompt_tokens=40,
    answer_tokens=5,
    most_step_tokens=128,
)
"""Small enough for a CPU: what it finds says nothing, but that each part runs."""


def decode_batch(case: DecodeCase, block_size: int) -> RaggedBatch:
    """One new token of each request, its blocks anywhere in the cache."""
    return _batch([(context - 1, 1) for context in case.contexts], block_size)


def prefill_batch(case: PrefillCase, block_size: int) -> RaggedBatch:
    """The chunks, their blocks anywhere in the cache."""
    return _batch(list(case.chunks), block_size)


def num_slots(batch: RaggedBatch) -> int:
    """Slots of the smallest cache that the batch's blocks lie in."""
    return (int(batch.block_tables.max()) + 1) * batch.block_size


def _batch(chunks: list[tuple[int, int]], block_size: int) -> RaggedBatch:
    counts = [-(-(start + length) // block_size) for start, length in chunks]
    blocks = np.random.default_rng(1).permutation(sum(counts))
    tables: list[NDArray[np.int64]] = np.split(blocks, np.cumsum(counts)[:-1])
    return RaggedBatch.of(
        [start for start, _ in chunks],
        [length for _, length in chunks],
        [table.tolist() for table in tables],
        block_size,
    )


def evenness(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Mapping[str, float]:
    """How evenly CTAs end, from when each began and ended, in nanoseconds.

    busy: mean time until a CTA ended, as a share of the time until the last did. first: of the
    first one. seconds: until the last ended.
    """
    origin = int(begins.min())
    took = (ends - origin).astype(float)
    last = max(float(took.max()), 1.0)
    return {
        "busy": float(took.mean()) / last,
        "first": float(took.min()) / last,
        "seconds": last * 1e-9,
    }
