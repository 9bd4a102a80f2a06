"""vLLM's blocks as slots, its steps as ragged batches, and what its plugin registers."""

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
from fastgen_kernels.dropins.vllm_blocks import Metadata, as_slots, ragged_batch, write_slots
from fastgen_kernels.dropins.vllm_plugin import BACKEND, register
from fastgen_kernels.heads import Heads
from fastgen_kernels.torch_twins.attention import attention
from fastgen_kernels.torch_twins.kv_cache import kv_write

BLOCK = 16
HEADS = Heads(4, 2, 8)
CPU = torch.device("cpu")


def empty_cache(blocks: int) -> torch.Tensor:
    """What nobody wrote is NaN, so that a read of it shows."""
    return torch.full((blocks, HEADS.num_kv, BLOCK, 2 * HEADS.size), torch.nan)


def vllm_slots(table: list[int], count: int) -> torch.Tensor:
    return torch.tensor([table[i // BLOCK] * BLOCK + i % BLOCK for i in range(count)])


def test_a_block_holds_its_own_tokens_and_no_others() -> None:
    cache = empty_cache(4)
    keys = torch.ones(BLOCK, HEADS.num_kv, HEADS.size)
    slots = vllm_slots([2], BLOCK)
    kv_write(keys, 2 * keys, as_slots(cache), write_slots(slots, BLOCK))
    assert sorted(cache[2].flatten().unique().tolist()) == [1, 2]
    assert cache[[0, 1, 3]].isnan().all()


def test_the_last_block_is_as_good_as_the_others() -> None:
    cache = empty_cache(3)
    keys = torch.randn(2 * BLOCK, HEADS.num_kv, HEADS.size)
    slots = write_slots(vllm_slots([2, 0], 2 * BLOCK), BLOCK)
    kv_write(keys, -keys, as_slots(cache), slots)
    assert torch.equal(as_slots(cache)[0, slots], keys)
    assert torch.equal(as_slots(cache)[1, slots], -keys)


def test_a_step_over_the_blocks_is_attention() -> None:
    """A prompt with a past, a decode, and padding for requests that are not there."""
    generator = torch.Generator().manual_seed(5)
    cache = empty_cache(8)
    tables, contexts, lengths = [[5, 2], [7, 0, 3]], [20, 40], [6, 1]
    expected, queries = [], []
    for table, context, length in zip(tables, contexts, lengths, strict=True):
        shape = (context, HEADS.num_kv, HEADS.size)
        keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
        kv_write(keys, values, as_slots(cache), write_slots(vllm_slots(table, context), BLOCK))
        query = torch.randn(length, HEADS.num_query, HEADS.size, generator=generator)
        mask = torch.ones(length, context).tril(context - length).bool()
        query_of_heads, *of_heads = (part.transpose(0, 1) for part in (query, keys, values))
        result = functional.scaled_dot_product_attention(
            query_of_heads, of_heads[0], of_heads[1], mask, enable_gqa=True
        )
        expected.append(result.transpose(0, 1).flatten(1))
        queries.append(query)
    batch = ragged_batch(
        torch.tensor([0, 6, 7, 7]),
        torch.tensor([*contexts, 0], dtype=torch.int32),
        torch.tensor([[5, 2, -1, 9], [7, 0, 3, 9], [-1, -1, -1, -1]], dtype=torch.int32),
        BLOCK,
    )
    assert batch.starts.tolist() == [14, 39]
    metadata = Metadata(batch, 7, torch.zeros(7))
    plan = metadata.plan(HEADS, torch.float32, CPU, None)
    torch.testing.assert_close(
        attention(torch.cat(queries), as_slots(cache), plan), torch.cat(expected)
    )


def test_layers_that_are_alike_share_a_plan() -> None:
    batch = ragged_batch(torch.tensor([0, 1]), torch.tensor([20]), torch.tensor([[1, 2]]), BLOCK)
    metadata = Metadata(batch, 1, torch.zeros(1))
    plan = metadata.plan(HEADS, torch.float32, CPU, None)
    assert metadata.plan(Heads(4, 2, 8), torch.float32, CPU, None) is plan
    assert metadata.plan(HEADS, torch.float32, CPU, 4) is not plan


def test_a_step_without_requests() -> None:
    batch = ragged_batch(torch.tensor([0, 0]), torch.tensor([0]), torch.tensor([[-1]]), BLOCK)
    assert len(batch.lengths) == 0


def test_another_layout_is_refused() -> None:
    with pytest.raises(UnsupportedAttentionError, match="LBHNC"):
        as_slots(empty_cache(2).transpose(1, 2))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a stand-in for vLLM's registry was given."""
    given: dict[str, str] = {}
    registry: Any = ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = SimpleNamespace(CUSTOM="CUSTOM", CPU_ATTN="CPU_ATTN")
    registry.register_backend = given.__setitem__
    name = ""
    for part in registry.__name__.split(".")[:-1]:
        name = f"{name}.{part}".strip(".")
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    return given


def test_the_plugin_replaces_nothing_unless_told(registered: dict[str, str]) -> None:
    register({})
    assert registered == {"CUSTOM": BACKEND}


def test_the_plugin_replaces_the_backend_of_cpus_when_told(registered: dict[str, str]) -> None:
    register({"FASTGEN_VLLM_CPU": "1"})
    assert registered == {"CUSTOM": BACKEND, "CPU_ATTN": BACKEND}


def test_another_vllm_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with caplog.at_level(logging.WARNING):
        register({})
    assert "made for vLLM 0.32" in caplog.text
