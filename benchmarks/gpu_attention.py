"""Attention's launches by the clock: decodes beside copy bandwidth, prompts in TFLOP/s."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from gpu_cases import (
    HEAD_SIZE,
    ITEM_BYTES,
    LARGE_BYTES,
    DecodeCase,
    PrefillCase,
    Sizes,
    decode_batch,
    evenness,
    num_slots,
    prefill_batch,
)
from gpu_figures import MORE, Figure
from gpu_target import Target, seconds
from torch import Tensor

from fastgen_kernels.attention_cost import decode_cost
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention_plan import decode_rows, make_plan
from fastgen_kernels.work_list import Splits, plan_work

_EVENNESS_ROUNDS = 5


def decode_figures(target: Target, sizes: Sizes, copy_rate: float) -> Iterator[Figure]:
    """Of each case: share of copy bandwidth by the keys and values that must be read alone."""
    for case in sizes.decode:
        batch = decode_batch(case, sizes.block_size)
        caches = caches_of(target, case.heads.num_kv, batch, sizes.least_bytes)
        query = queries_of(target, case.heads.num_query, len(case.contexts))
        took = _decode_seconds(target, case, batch, query, caches, None, sizes.rounds)
        aim = None if case.aim is None or case.cache_bytes < LARGE_BYTES else (MORE, case.aim)
        yield Figure(
            "decode", case.name, "share of copy bandwidth", case.cache_bytes / took / copy_rate,
            "", 1.0, aim,
        )  # fmt: skip
        yield Figure(
            "decode", case.name, "launches", 1e6 * took, "µs", 1e6 * case.cache_bytes / copy_rate
        )
        work = plan_work(decode_rows(batch, None), case.heads, target.gpu.multiprocessors)
        cost = decode_cost(work, case.heads, ITEM_BYTES, ITEM_BYTES)
        yield Figure(
            "decode", case.name, "bytes beside keys and values",
            100 * cost.other_bytes / cost.cache_bytes, "%",
        )  # fmt: skip
        if target.has_plans:
            yield from _splits(target, case, batch, query, caches, took, sizes.rounds)
        if target.is_gpu:
            yield from _evenness(target, case, batch, query, caches[0])


def prefill_figures(target: Target, sizes: Sizes, product_rate: float) -> Iterator[Figure]:
    """Of each case: operations over the keys that queries see, per second."""
    for case in sizes.prefill:
        batch = prefill_batch(case, sizes.block_size)
        (cache,) = caches_of(target, case.heads.num_kv, batch, 1)
        tokens = sum(length for _, length in case.chunks)
        query = queries_of(target, case.heads.num_query, tokens)
        plan = target.kernels.plan_attention(batch, case.heads, target.dtype, target.device)
        run = partial(target.kernels.attention, query, cache, plan)
        took = seconds(target, run, sizes.rounds)
        yield prefill_figure("prefill", case, took, product_rate)


def prefill_figure(part: str, case: PrefillCase, took: float, product_rate: float) -> Figure:
    """took: seconds. Beside it what a plain product of matrices reaches."""
    aim = None if case.aim is None or part != "prefill" else (MORE, case.aim)
    return Figure(
        part, case.name, "attention", case.operations / took / 1e12, "TFLOP/s",
        product_rate / 1e12, aim,
    )  # fmt: skip


def caches_of(target: Target, kv_heads: int, batch: RaggedBatch, least_bytes: int) -> list[Tensor]:
    """Caches [2, slots, kv heads, D] of random numbers; together of `least_bytes` at least."""
    shape = (2, num_slots(batch), kv_heads, HEAD_SIZE)
    one = int(np.prod(shape)) * target.dtype.itemsize
    return [target.random(*shape, seed=number) for number in range(max(1, -(-least_bytes // one)))]


def queries_of(target: Target, heads: int, tokens: int) -> Tensor:
    """[T, heads, D]."""
    return target.random(tokens, heads, HEAD_SIZE, seed=99)


def _decode_seconds(
    target: Target,
    case: DecodeCase,
    batch: RaggedBatch,
    query: Tensor,
    caches: list[Tensor],
    splits: Splits | None,
    rounds: int,
) -> float:
    """Of one layer's attention, among layers with caches of their own, as in a step."""
    if splits is None:
        plan = target.kernels.plan_attention(batch, case.heads, target.dtype, target.device)
    else:
        plan = make_plan(batch, case.heads, target.device, target.gpu, None, splits)

    def run() -> None:
        for cache in caches:
            target.kernels.attention(query, cache, plan)

    return seconds(target, run, rounds) / len(caches)


def _splits(
    target: Target,
    case: DecodeCase,
    batch: RaggedBatch,
    query: Tensor,
    caches: list[Tensor],
    took: float,
    rounds: int,
) -> Iterator[Figure]:
    """Other divisions of the same work, by the same kernel: how much longer they take."""
    for splits in (Splits.FIXED, Splits.SPLIT_KV, Splits.SPLIT_KV_CAPPED):
        other = _decode_seconds(target, case, batch, query, caches, splits, rounds)
        yield Figure("decode", case.name, f"{splits}, over the work list", other / took, "x")


def _evenness(
    target: Target, case: DecodeCase, batch: RaggedBatch, query: Tensor, cache: Tensor
) -> Iterator[Figure]:
    """The median run's, of the decode launch alone."""
    from gpu_stamps import stamped_launch, stamps_of

    from fastgen_kernels.triton_kernels.attention import launches

    plan = make_plan(batch, case.heads, target.device, target.gpu)
    launch = stamped_launch(launches(query, cache, plan, torch.empty_like(query))[0])
    runs = [evenness(stamps[:, 0], stamps[:, 1]) for stamps in stamps_of(launch, _EVENNESS_ROUNDS)]
    middle = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
    yield Figure("decode", case.name, "CTAs busy until the last ends", 100 * middle["busy"], "%")
    yield Figure("decode", case.name, "first CTA's end, of the last's", 100 * middle["first"], "%")
