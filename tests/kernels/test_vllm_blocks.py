"""vLLM's blocks by the kernels of a GPU, interpreted: what the twins make of them."""

import pytest
import torch

from fastgen_kernels.dropins.vllm_blocks import as_slots, ragged_batch, write_slots
from fastgen_kernels.heads import Heads
from fastgen_kernels.torch_twins import attention as twin
from fastgen_kernels.torch_twins.kv_cache import kv_write as twin_kv_write
from fastgen_kernels.triton_kernels.attention import attention
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.kv_cache import kv_write
from fastgen_kernels.triton_kernels.tiling import Gpu

BLOCK = 16
HEADS = Heads(4, 2, 16)
CPU = torch.device("cpu")


def filled(write: object, slots: torch.Tensor) -> torch.Tensor:
    """A cache of 6 blocks; what nobody wrote is NaN."""
    generator = torch.Generator().manual_seed(4)
    cache = torch.full((6, HEADS.num_kv, BLOCK, 2 * HEADS.size), torch.nan)
    keys, values = (
        torch.randn(len(slots), HEADS.num_kv, HEADS.size, generator=generator) for _ in range(2)
    )
    kept = slots >= 0 if write is twin_kv_write else torch.ones_like(slots, dtype=torch.bool)
    write(keys[kept], values[kept], as_slots(cache), write_slots(slots[kept], BLOCK))
    return cache


@pytest.mark.parametrize("window", [None, 7])
def test_writes_and_reads_are_the_twins(window: int | None) -> None:
    """The last block is among them; a token without a slot is not written."""
    tables = torch.tensor([[5, 2], [0, 3]], dtype=torch.int32)
    slots = torch.cat([tables[:, :, None] * BLOCK + torch.arange(BLOCK)]).flatten().long()
    slots = torch.cat([slots, torch.tensor([-1])])
    cache = filled(kv_write, slots)
    assert torch.equal(cache.nan_to_num(9), filled(twin_kv_write, slots).nan_to_num(9))
    batch = ragged_batch(torch.tensor([0, 5, 6]), torch.tensor([20, 31]), tables, BLOCK)
    query = torch.randn(6, HEADS.num_query, HEADS.size, generator=torch.Generator().manual_seed(1))
    plan = make_plan(batch, HEADS, CPU, Gpu(90, 2), window)
    expected = twin.plan_attention(batch, HEADS, torch.float32, CPU, window)
    torch.testing.assert_close(
        attention(query, as_slots(cache), plan),
        twin.attention(query, as_slots(cache), expected),
        atol=1e-5,
        rtol=0,
    )
