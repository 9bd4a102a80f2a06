"""Others' attention on the same cases, where their packages are there; each is asked by itself.

Kernels that know no pages get keys and values side by side, padded to the longest request; their
figures count the bytes and operations that are useful, as ours do.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from gpu_attention import caches_of, prefill_figure, queries_of
from gpu_cases import (
    HEAD_SIZE,
    DecodeCase,
    PrefillCase,
    Sizes,
    decode_batch,
    num_slots,
)
from gpu_figures import Figure, Trouble
from gpu_target import Target, eager_seconds, seconds
from torch import Tensor
from torch.nn import functional

from fastgen_kernels.ragged import RaggedBatch

_PAGE: Final = 256
"""Tokens of a block: FlashAttention 2 takes no smaller ones."""
_WORKSPACE_BYTES: Final = 256 << 20
Run = Callable[[], Any]


class NotForCaseError(Exception):
    """A peer cannot compute a case: too much padding, or a past that it does not take."""


def peer_findings(
    target: Target, sizes: Sizes, copy_rate: float, product_rate: float
) -> Iterator[Figure | Trouble]:
    """Each peer on each case that it can compute."""
    for name, (decode, prefill) in PEERS.items():
        try:
            for case in sizes.decode:
                yield from _decode_finding(target, sizes, name, decode, case, copy_rate)
            for prompts in sizes.prefill:
                yield from _prefill_finding(target, sizes, name, prefill, prompts, product_rate)
        except ImportError:
            yield Trouble("peers", name, "is not installed")
        except Exception as error:
            first = str(error).strip().splitlines()[:1]
            yield Trouble("peers", name, f"{type(error).__name__}: {''.join(first)[:160]}")
        if target.is_gpu:
            torch.cuda.empty_cache()


def _decode_finding(
    target: Target,
    sizes: Sizes,
    name: str,
    make: Callable[[Target, DecodeCase], Run],
    case: DecodeCase,
    copy_rate: float,
) -> Iterator[Figure]:
    try:
        took = _measured(target, make(target, case), sizes.rounds)
    except NotForCaseError:
        return
    share = case.cache_bytes / took / copy_rate
    yield Figure("peers", f"decode {case.name}, {name}", "share of copy bandwidth", share, "", 1.0)


def _prefill_finding(
    target: Target,
    sizes: Sizes,
    name: str,
    make: Callable[[Target, PrefillCase], Run],
    case: PrefillCase,
    product_rate: float,
) -> Iterator[Figure]:
    try:
        took = _measured(target, make(target, case), sizes.rounds)
    except NotForCaseError:
        return
    figure = prefill_figure("peers", case, took, product_rate)
    yield Figure(
        "peers", f"prefill {case.name}, {name}", figure.name, figure.value, figure.unit,
        figure.floor,
    )  # fmt: skip


def _measured(target: Target, run: Run, rounds: int) -> float:
    """Captured where that is possible, as ours are."""
    try:
        return seconds(target, run, rounds)
    except RuntimeError:
        torch.cuda.synchronize()
        return eager_seconds(target, run, rounds)


def _dense(target: Target, case: DecodeCase) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """query [R, heads, 1, D], keys and values [R, kv heads, K, D], and which keys there are."""
    rows, longest = len(case.contexts), max(case.contexts)
    if rows * longest > 4 * sum(case.contexts):
        raise NotForCaseError
    query = target.random(rows, case.heads.num_query, 1, HEAD_SIZE)
    shape = (rows, case.num_kv_heads, longest, HEAD_SIZE)
    keys, values = target.random(*shape, seed=1), target.random(*shape, seed=2)
    if case.is_even:
        return query, keys, values, None
    lengths = torch.tensor(case.contexts, device=target.device)
    there = torch.arange(longest, device=target.device) < lengths[:, None]
    return query, keys, values, there[:, None, None]


def _whole(target: Target, case: PrefillCase) -> tuple[Tensor, Tensor, Tensor]:
    """query [N, heads, T, D], keys and values [N, kv heads, T, D] of whole prompts."""
    if not case.is_whole:
        raise NotForCaseError
    rows, tokens = len(case.chunks), case.chunks[0][1]
    query = target.random(rows, case.heads.num_query, tokens, HEAD_SIZE)
    shape = (rows, case.num_kv_heads, tokens, HEAD_SIZE)
    return query, target.random(*shape, seed=1), target.random(*shape, seed=2)


def _sdpa_decode(target: Target, case: DecodeCase) -> Run:
    query, keys, values, there = _dense(target, case)
    return lambda: functional.scaled_dot_product_attention(
        query, keys, values, there, enable_gqa=True
    )


def _sdpa_prefill(target: Target, case: PrefillCase) -> Run:
    query, keys, values = _whole(target, case)
    return lambda: functional.scaled_dot_product_attention(
        query, keys, values, is_causal=True, enable_gqa=True
    )


def _flex(target: Target) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    if not target.is_gpu:
        return flex_attention
    torch._dynamo.reset()  # or its limit of compilations is reached
    return torch.compile(flex_attention, dynamic=False)


def _flex_decode(target: Target, case: DecodeCase) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask

    query, keys, values, there = _dense(target, case)
    mask = None
    if there is not None:
        lengths = torch.tensor(case.contexts, device=target.device)
        mask = create_block_mask(
            lambda row, head, at, key: key < lengths[row],
            len(keys), None, 1, keys.shape[2], device=str(target.device),
        )  # fmt: skip
    flex = _flex(target)
    return lambda: flex(query, keys, values, block_mask=mask, enable_gqa=True)


def _flex_prefill(target: Target, case: PrefillCase) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask

    query, keys, values = _whole(target, case)
    tokens = query.shape[2]
    mask = create_block_mask(
        lambda row, head, at, key: at >= key, None, None, tokens, tokens, device=str(target.device)
    )
    flex = _flex(target)
    return lambda: flex(query, keys, values, block_mask=mask, enable_gqa=True)


def _paged(target: Target, case: DecodeCase) -> tuple[RaggedBatch, Tensor, Tensor]:
    """The batch, query [R, heads, D] and cache [2, blocks, block size, kv heads, D]."""
    batch = decode_batch(case, _PAGE)
    (cache,) = caches_of(target, case.num_kv_heads, batch, 1)
    pages = cache.view(2, num_slots(batch) // _PAGE, _PAGE, case.num_kv_heads, HEAD_SIZE)
    return batch, queries_of(target, case.heads.num_query, len(case.contexts)), pages


def _flash_decode(target: Target, case: DecodeCase) -> Run:
    from flash_attn import flash_attn_with_kvcache  # type: ignore[import-not-found]

    batch, query, pages = _paged(target, case)
    lengths = torch.tensor(case.contexts, dtype=torch.int32, device=target.device)
    tables = torch.from_numpy(batch.block_tables).to(target.device, torch.int32)
    return lambda: flash_attn_with_kvcache(
        query[:, None], pages[0], pages[1], cache_seqlens=lengths, block_table=tables, causal=True
    )


def _flash_prefill(target: Target, case: PrefillCase) -> Run:
    from flash_attn import flash_attn_func

    query, keys, values = (part.transpose(1, 2).contiguous() for part in _whole(target, case))
    return lambda: flash_attn_func(query, keys, values, causal=True)


def _flashinfer_decode(target: Target, case: DecodeCase) -> Run:
    import flashinfer  # type: ignore[import-not-found]

    batch, query, pages = _paged(target, case)
    counts = [-(-context // _PAGE) for context in case.contexts]
    starts = torch.tensor([0, *counts]).cumsum(0).to(target.device, torch.int32)
    tables = [batch.block_tables[row, :count] for row, count in enumerate(counts)]
    blocks = torch.cat([torch.from_numpy(table) for table in tables]).to(target.device, torch.int32)
    last = torch.tensor(
        [(context - 1) % _PAGE + 1 for context in case.contexts],
        dtype=torch.int32, device=target.device,
    )  # fmt: skip
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=target.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        starts, blocks, last, case.heads.num_query, case.num_kv_heads, HEAD_SIZE, _PAGE,
        q_data_type=target.dtype, kv_data_type=target.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(query, (pages[0], pages[1]))


def _flashinfer_prefill(target: Target, case: PrefillCase) -> Run:
    import flashinfer

    if len(case.chunks) > 1:
        raise NotForCaseError
    query, keys, values = (part[0].transpose(0, 1).contiguous() for part in _whole(target, case))
    return lambda: flashinfer.single_prefill_with_kv_cache(query, keys, values, causal=True)


def _vllm_decode(target: Target, case: DecodeCase) -> Run:
    from vllm.vllm_flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    batch, query, pages = _paged(target, case)
    rows = len(case.contexts)
    lengths = torch.tensor(case.contexts, dtype=torch.int32, device=target.device)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=target.device)
    tables = torch.from_numpy(batch.block_tables).to(target.device, torch.int32)
    return lambda: flash_attn_varlen_func(
        q=query, k=pages[0], v=pages[1], max_seqlen_q=1, cu_seqlens_q=starts,
        max_seqlen_k=max(case.contexts), seqused_k=lengths, block_table=tables, causal=True,
    )  # fmt: skip


def _vllm_prefill(target: Target, case: PrefillCase) -> Run:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    parts = (part.transpose(1, 2).flatten(0, 1).contiguous() for part in _whole(target, case))
    query, keys, values = parts
    tokens = case.chunks[0][1]
    starts = torch.arange(len(case.chunks) + 1, dtype=torch.int32, device=target.device) * tokens
    return lambda: flash_attn_varlen_func(
        q=query, k=keys, v=values, max_seqlen_q=tokens, cu_seqlens_q=starts, max_seqlen_k=tokens,
        cu_seqlens_k=starts, causal=True,
    )  # fmt: skip


PEERS: Final[
    dict[str, tuple[Callable[[Target, DecodeCase], Run], Callable[[Target, PrefillCase], Run]]]
] = {
    "torch SDPA": (_sdpa_decode, _sdpa_prefill),
    "FlashAttention": (_flash_decode, _flash_prefill),
    "FlashInfer": (_flashinfer_decode, _flashinfer_prefill),
    "vLLM's FlashAttention": (_vllm_decode, _vllm_prefill),
    # The last, since it compiles for each case.
    "FlexAttention": (_flex_decode, _flex_prefill),
}
