"""The kernel that writes to the cache, interpreted, against its twin."""

import mmap
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from torch import Tensor

from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins import kv_cache as twin
from fastgen_kernels.triton_kernels.attention import attention
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.kv_cache import kv_write
from fastgen_kernels.triton_kernels.tiling import Gpu

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def poisoned(slots: int, heads: int, size: int, dtype: torch.dtype) -> Tensor:
    return torch.full((2, slots, heads, size), torch.nan).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(1, 8), (2, 80), (8, 256)])
def test_equals_the_twin(heads: int, size: int, dtype: torch.dtype) -> None:
    """Keys and values that are parts of one tensor, as in a layer; other slots are untouched."""
    made = random(5, 3 * heads, size).to(dtype)
    keys, values = made[:, heads : 2 * heads], made[:, 2 * heads :]
    slots = torch.tensor([9, 0, 4, 30, 17])
    cache, expected = (poisoned(32, heads, size, dtype) for _ in range(2))
    kv_write(keys, values, cache, slots)
    twin.kv_write(keys, values, expected, slots)
    torch.testing.assert_close(cache, expected, atol=0, rtol=0, equal_nan=True)


def test_no_slot_is_no_write() -> None:
    """-1 is the padding of a captured graph: its block would be the last one (vLLM 43810)."""
    keys, values = random(4, 2, 16), random(4, 2, 16, seed=1)
    cache = poisoned(32, 2, 16, torch.float32)
    kv_write(keys, values, cache, torch.tensor([-1, 3, 32, 1 << 40]))
    assert torch.equal(cache[0, 3], keys[1])
    assert torch.equal(cache[1, 3], values[1])
    cache[:, 3] = torch.nan
    assert cache.isnan().all()


def test_fewer_slots_than_tokens_are_refused() -> None:
    """A padded batch with slots of the real tokens only (vLLM 13418)."""
    keys = random(4, 2, 16)
    with pytest.raises(ValueError, match="4 keys and 4 values for 3 slots"):
        kv_write(keys, keys, poisoned(32, 2, 16, torch.float32), torch.tensor([1, 2, 3]))


def test_heads_that_lie_apart_are_refused() -> None:
    keys = random(4, 16, 2).transpose(1, 2)
    with pytest.raises(ValueError, match="keys: heads must be side by side"):
        kv_write(keys, keys, poisoned(32, 2, 16, torch.float32), torch.arange(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_cache_with_scales(dtype: torch.dtype) -> None:
    """Each becomes the nearest that there is, those beyond the largest that one; NaN stays NaN."""
    keys, values = random(6, 2, 16).to(dtype), random(6, 2, 16, seed=1).to(dtype)
    keys[0, 0, :3] = torch.tensor([1000.0, -1000.0, torch.nan])
    cache = torch.zeros((2, 8, 2, 16)).to(torch.float8_e4m3fn)
    kv_write(keys, values, cache, torch.arange(6), 0.25, 2.0)
    stored = cache[:, :6].float()
    assert stored[0, 0, 0, :2].tolist() == [448.0, -448.0]
    assert stored[0, 0, 0, 2].isnan()
    expected = torch.zeros((2, 8, 2, 16)).to(torch.float8_e4m3fn)
    twin.kv_write(keys, values, expected, torch.arange(6), 0.25, 2.0)
    assert torch.equal(stored.nan_to_num(), expected[:, :6].float().nan_to_num())


def test_the_twin_rounds_to_the_nearest_fp8() -> None:
    keys = random(6, 2, 16)
    keys[0, 0, 0] = 1e6
    cache = torch.zeros((2, 8, 2, 16)).to(torch.float8_e4m3fn)
    twin.kv_write(keys, keys, cache, torch.arange(6), 0.5, 1.0)
    assert cache[0, 0, 0, 0].float() == 448.0
    assert torch.equal(cache[1, 1:6].float(), keys[1:].to(torch.float8_e4m3fn).float())
    assert torch.equal(cache[0, 1:6].float(), (keys[1:] * 2).to(torch.float8_e4m3fn).float())


def _million_tokens() -> None:
    """A context of a million tokens whose last blocks lie past 2^31 numbers of the cache.

    The cache is address space that takes memory only where it is touched.
    """
    heads, block_size, context = Heads(16, 8, 128), 64, 1_000_000
    table = np.arange(-(-context // block_size))[::-1] + 20_000
    slots = (int(table.max()) + 1) * block_size
    items = 2 * slots * heads.num_kv * heads.size
    assert slots * heads.num_kv * heads.size > 1 << 31
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    memory = mmap.mmap(-1, items * 2, flags=flags)
    cache = torch.frombuffer(memory, dtype=torch.float16).view(2, slots, heads.num_kv, heads.size)
    batch = RaggedBatch.of([context - 1, 100], [1, 40], [table, table[-3:]], block_size)
    for row, seen in ((0, 200), (1, 140)):
        end = int(batch.contexts[row])
        positions = np.arange(end - min(seen, end), end)
        places = batch.block_tables[row, positions // 64] * block_size + positions % 64
        keys = random(len(places), 8, 128, seed=row).half()
        kv_write(keys, keys, cache, torch.from_numpy(places))
        assert torch.equal(cache[0, places[-1]], keys[-1])
        assert torch.equal(cache[1, places[0]], keys[0])
    query = random(41, 16, 128).half()
    window = 150
    plan = make_plan(batch, heads, torch.device("cpu"), Gpu(90, 1), window)
    out = attention(query, cache, plan).view(41, 16, 128)
    for token, row, position in ((0, 0, context - 1), (1, 1, 100), (40, 1, 139)):
        positions = np.arange(max(0, position + 1 - window), position + 1)
        places = batch.block_tables[row, positions // 64] * block_size + positions % 64
        keys = cache[0, torch.from_numpy(places), 3].double()
        weights = torch.softmax(keys @ query[token, 6].double() * 128**-0.5, 0)
        torch.testing.assert_close(out[token, 6].double(), weights @ keys, atol=2e-3, rtol=0)


def test_offsets_have_64_bits() -> None:
    """SGLang 20389, vLLM 47671: in a process of its own, since wrong offsets end it.

    Values are compared, too: wrong ones may be as quiet (vLLM 50427).
    """
    process = get_context("fork").Process(target=_million_tokens)
    process.start()
    process.join(300)
    assert process.exitcode == 0
