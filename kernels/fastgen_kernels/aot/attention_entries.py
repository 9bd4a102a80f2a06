"""Every variant of the attention and cache kernels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from fastgen_kernels.aot.entry import AMPERE, HOPPER, Entry
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention import launches
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.kv_cache import kv_write_launch
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.tiling import Gpu

HEAD_SIZES: Final = (64, 80, 96, 128, 256)
_KV_HEADS: Final = 8
_WRITTEN_SIZE: Final = 128
_MULTIPROCESSORS: Final = 3
_COMMON_SIZES: Final = (64, 128)
_COMMON_BLOCK: Final = 64
_BLOCK_SIZES: Final = (16, _COMMON_BLOCK)
"""Smaller than a tile of keys and not: the kernels for 32 and 128 are one of these two."""
_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Variant:
    """dtype: of the queries; fp8: of the cache, then."""

    dtype: str
    size: int
    block_size: int
    capped: bool = False
    windowed: bool = False
    fp8: bool = False
    group: int = 4

    @property
    def name(self) -> str:
        words = [self.dtype, f"head {self.size}", f"block {self.block_size}"]
        words += ["fp8 cache"] * self.fp8 + ["window"] * self.windowed + ["cap"] * self.capped
        words += [f"group {self.group}"] * (self.group > 16)
        return ", ".join(words)

    @property
    def is_common(self) -> bool:
        """What the tested models, and the shapes of the benchmarks, select."""
        plain = self.dtype == "bf16" and not (self.capped or self.group > 16)
        usual = self.block_size == _COMMON_BLOCK and self.size in _COMMON_SIZES
        return plain and usual and not (self.fp8 and self.windowed)


def entries() -> Iterator[Entry]:
    for architecture in (AMPERE, HOPPER):
        for variant in _variants(architecture):
            if not variant.windowed:
                # Hopper's own products take 64 rows at least.
                is_wide = architecture == HOPPER and variant.group >= 64
                products = "HGMMA" if is_wide else "HMMA"
                yield _entry("decode", _decode, variant, architecture, ("LDGSTS", products))
            if variant.group <= 16:
                products = "HGMMA" if architecture == HOPPER else "HMMA"
                yield _entry("prefill", _prefill, variant, architecture, ("LDGSTS", products))
        for size in HEAD_SIZES:
            for dtype in _DTYPES:
                variant = Variant(dtype, size, _COMMON_BLOCK)
                yield _entry("merge", _merge, variant, architecture, ("LDG.E.128",))
        for dtype in _DTYPES:
            for fp8 in (False, True) if architecture == HOPPER else (False,):
                variant = Variant(dtype, _WRITTEN_SIZE, _COMMON_BLOCK, fp8=fp8)
                yield _entry("kv_write", _kv_write, variant, architecture, ("LDG.E.128",))


def _entry(
    operation: str,
    make: Callable[[Variant, int], Launch],
    variant: Variant,
    architecture: int,
    instructions: tuple[str, ...],
) -> Entry:
    return Entry(
        f"{operation} {variant.name}",
        architecture,
        partial(make, variant, architecture),
        instructions,
        variant.is_common,
    )


def _variants(architecture: int) -> Iterator[Variant]:
    for size in HEAD_SIZES:
        for block_size in _BLOCK_SIZES:
            for windowed in (False, True):
                for capped in (False, True):
                    yield Variant("bf16", size, block_size, capped, windowed)
            if architecture == HOPPER:  # Triton knows float8_e4m3fn from sm_89 on
                yield Variant("bf16", size, block_size, fp8=True)
        # Their code differs from bfloat16's in the types of instructions only, whatever the block.
        for windowed in (False, True):
            for capped in (False, True):
                yield Variant("fp16", size, _COMMON_BLOCK, capped, windowed)
                if architecture == HOPPER and (windowed or capped):
                    yield Variant("bf16", size, _COMMON_BLOCK, capped, windowed, fp8=True)
        if architecture == HOPPER:
            yield Variant("fp16", size, _COMMON_BLOCK, fp8=True)
    for group in (32, 64, 128):
        for size in HEAD_SIZES:
            if size * group <= 16384:  # what `attention.check` takes
                yield Variant("bf16", size, _COMMON_BLOCK, group=group)


def _decode(variant: Variant, architecture: int) -> Launch:
    return _launches(variant, architecture, [(1000, 1), (2000, 1)])[0]


def _merge(variant: Variant, architecture: int) -> Launch:
    return _launches(variant, architecture, [(2000, 1)])[1]


def _prefill(variant: Variant, architecture: int) -> Launch:
    return _launches(variant, architecture, [(1000, 100)])[0]


def _launches(variant: Variant, architecture: int, chunks: list[tuple[int, int]]) -> list[Launch]:
    """As a forward pass makes them: queries are part of a tensor that holds keys, too."""
    heads = Heads(variant.group * _KV_HEADS, _KV_HEADS, variant.size)
    dtype = _DTYPES[variant.dtype]
    counts = [-(-(start + length) // variant.block_size) for start, length in chunks]
    batch = RaggedBatch.of(
        [start for start, _ in chunks],
        [length for _, length in chunks],
        [range(count) for count in counts],
        variant.block_size,
    )
    window = 500 if variant.windowed else None
    gpu = Gpu(architecture, _MULTIPROCESSORS)
    plan = make_plan(batch, heads, torch.device("cpu"), gpu, window)
    tokens = sum(length for _, length in chunks)
    query = torch.empty((tokens, heads.num_query + heads.num_kv, heads.size), dtype=dtype)
    kept = torch.float8_e4m3fn if variant.fp8 else dtype
    slots = max(counts) * variant.block_size
    cache = torch.empty((2, slots, heads.num_kv, heads.size), dtype=kept)
    out = torch.empty((tokens, heads.num_query, heads.size), dtype=dtype)
    cap = 50.0 if variant.capped else None
    return launches(query[:, : heads.num_query], cache, plan, out, soft_cap=cap)


def _kv_write(variant: Variant, architecture: int) -> Launch:
    """The same for all architectures."""
    dtype = _DTYPES[variant.dtype]
    keys = torch.empty((4, _KV_HEADS, variant.size), dtype=dtype)
    kept = torch.float8_e4m3fn if variant.fp8 else dtype
    cache = torch.empty((2, 64, _KV_HEADS, variant.size), dtype=kept)
    return kv_write_launch(keys, keys, cache, torch.zeros(4, dtype=torch.int64))
