"""The kernels against their twins, on the device that computes: each operation once or more.

The twins compute in float32 from the very numbers that the kernels get; what is reported is the
largest difference, beside a bound for results of about 1.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from gpu_figures import LESS, MORE, Figure
from gpu_target import Target
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins import (
    activation,
    attention,
    experts,
    kv_cache,
    norm,
    quantized,
    rotary,
    sampling,
    token_logprobs,
)
from fastgen_kernels.triton_kernels.attention_plan import make_plan

BOUNDS: Final[Mapping[torch.dtype, float]] = {
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
    torch.float32: 2e-5,
}
_CPU: Final = torch.device("cpu")
_SIZE: Final = 512
_VOCABULARY: Final = 1000
_FP8_LEAST: Final = 89
"""Architecture from which on there are numbers of float8_e4m3fn."""
_CHUNKS: Final = ((0, 1), (63, 1), (64, 1), (300, 1), (0, 65), (130, 40), (0, 2))
"""Decodes and prompts about the sizes of tiles."""


def check_figures(target: Target) -> Iterator[Figure]:
    """One line per operation."""
    bound = BOUNDS[target.dtype]
    for name, check in {**_attention_checks(), **_LAYERS}.items():
        if "fp8" in name and target.gpu.architecture < _FP8_LEAST:
            continue
        yield Figure("checks", name, "largest error", check(target), "", aim=(LESS, bound))
    if target.has_plans:
        yield Figure(
            "checks", "attention, without prefetching", "largest difference",
            _prefetching(target), "", aim=(LESS, bound),
        )  # fmt: skip
    if target.has_plans and target.gpu.architecture >= _FP8_LEAST:
        error = _fp8_attention(target)
        yield Figure(
            "checks", "attention, fp8 cache", "largest error", error, "", aim=(LESS, bound)
        )
    yield Figure(
        "checks", "sampling", "tokens as the twin's", _tokens(target), "%", aim=(MORE, 100.0)
    )


def _error(result: Tensor, expected: Tensor) -> float:
    """NaN where either is no number, so that no bound is reached."""
    return float((result.to(_CPU).float() - expected.to(_CPU).float()).abs().max())


def _wide(tensor: Tensor) -> Tensor:
    """As the twins get it: a copy on the host, in float32."""
    return tensor.to(_CPU, torch.float32, copy=True)


Check = Callable[[Target], float]


def _attention_checks() -> dict[str, Check]:
    return {
        f"attention, head {size}, block {block}{words}": _attention(size, block, window, cap)
        for size, block, window, cap, words in (
            (64, 16, None, None, ""),
            (128, 64, None, None, ""),
            (128, 64, 50, None, ", window"),
            (128, 16, None, 20.0, ", cap"),
            (256, 32, 50, 20.0, ", window, cap"),
        )
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """cache: NaN where no chunk sees it."""

    heads: Heads
    batch: RaggedBatch
    query: Tensor
    cache: Tensor


def _case(target: Target, size: int, block: int) -> _Case:
    """_CHUNKS, their blocks anywhere."""
    heads = Heads(8, 2, size)
    counts = [-(-(start + length) // block) for start, length in _CHUNKS]
    blocks = np.random.default_rng(0).permutation(sum(counts) + 2).tolist()
    tables = [[blocks.pop() for _ in range(count)] for count in counts]
    starts, lengths = zip(*_CHUNKS, strict=True)
    batch = RaggedBatch.of(starts, lengths, tables, block)
    whole = target.random(2, (sum(counts) + 2) * block, heads.num_kv, size)
    cache = torch.full_like(whole, torch.nan)
    for row, context in enumerate(batch.contexts.tolist()):
        used = batch.last_slots(row, row + 1, np.array([context]))[0]
        where = torch.from_numpy(used).to(target.device)
        cache[:, where] = whole[:, where]
    return _Case(heads, batch, target.random(sum(lengths), 8, size, seed=1), cache)


def _attention(size: int, block: int, window: int | None, cap: float | None) -> Check:
    def check(target: Target) -> float:
        case = _case(target, size, block)
        plan = target.kernels.plan_attention(
            case.batch, case.heads, target.dtype, target.device, window
        )
        result = target.kernels.attention(case.query, case.cache, plan, soft_cap=cap)
        return _error(result, _expected(case, case.cache, window, cap))

    return check


def _expected(case: _Case, cache: Tensor, window: int | None, cap: float | None) -> Tensor:
    plan = attention.plan_attention(case.batch, case.heads, torch.float32, _CPU, window)
    return attention.attention(_wide(case.query), _wide(cache), plan, soft_cap=cap)


def _prefetching(target: Target) -> float:
    """Between results of tiles loaded ahead and not: compilers erred there (aiter 4163)."""
    from fastgen_kernels.triton_kernels.attention import launches

    case = _case(target, 128, 64)
    plan = make_plan(case.batch, case.heads, target.device, target.gpu)
    results = [torch.empty_like(case.query) for _ in range(2)]
    for launch in launches(case.query, case.cache, plan, results[0]):
        launch.run()
    for launch in launches(case.query, case.cache, plan, results[1]):
        replace(launch, num_stages=1).run()
    return _error(*results)


def _fp8_attention(target: Target) -> float:
    """Keys and values of fp8 with a scale each; the twin gets the very numbers. Relative to the
    values' scale."""
    from fastgen_kernels.triton_kernels.attention import Scales
    from fastgen_kernels.triton_kernels.attention import attention as kernel

    case = _case(target, 128, 64)
    scales = Scales(0.5, 2.0)
    kept = case.cache.float().clamp(-448, 448).to(torch.float8_e4m3fn)
    plan = make_plan(case.batch, case.heads, target.device, target.gpu)
    result = kernel(case.query, kept, plan, scales=scales)
    wide = (
        kept.float()
        * torch.tensor([scales.key, scales.value], device=target.device)[:, None, None, None]
    )
    return _error(result, _expected(case, wide, None, None)) / scales.value


def _rms_norm(target: Target) -> float:
    x, residual, weight = (target.random(9, _SIZE, seed=seed) for seed in range(3))
    weight = weight[0].contiguous()
    wide = _wide(x), _wide(residual), _wide(weight)
    result, total = target.kernels.add_rms_norm(x, residual, weight, 1e-5)
    expected, expected_total = norm.add_rms_norm(*wide, 1e-5)
    # Relative to results beyond 1, which are rounded as such.
    scale = expected.abs().clamp(min=1)
    off = _error(result.to(_CPU).float() / scale, expected / scale)
    return max(off, _error(total, expected_total) / float(expected_total.abs().max()))


def _layer_norm(target: Target) -> float:
    x = target.random(9, _SIZE)
    weight, bias = (target.random(_SIZE, seed=seed, scale=0.3) for seed in (1, 2))
    result = target.kernels.layer_norm(x, weight, bias, 1e-5)
    expected = norm.layer_norm(_wide(x), _wide(weight), _wide(bias), 1e-5)
    return _error(result, expected)


def _rotary(target: Target) -> float:
    x = target.random(9, 6, 80, scale=0.5)
    angles = torch.outer(torch.arange(9.0), torch.arange(1, 17) / 16)[:, None]
    cos, sin = (part.to(target.device, target.dtype) for part in (angles.cos(), angles.sin()))
    return _error(
        target.kernels.rotary(x, cos, sin), rotary.rotary(_wide(x), _wide(cos), _wide(sin))
    )


def _gate(target: Target) -> float:
    x = target.random(9, 2 * _SIZE, scale=0.5)
    results = target.kernels.gate(x, Activation.SILU)
    return _error(results, activation.gate(_wide(x), Activation.SILU))


def _kv_write(target: Target) -> float:
    keys, values = target.random(5, 2, 64), target.random(5, 2, 64, seed=1)
    slots = torch.tensor([9, 0, 4, 30, 17])
    cache = torch.zeros((2, 32, 2, 64), dtype=target.dtype, device=target.device)
    expected = _wide(cache)
    target.kernels.kv_write(keys, values, cache, slots.to(target.device))
    kv_cache.kv_write(_wide(keys), _wide(values), expected, slots)
    return _error(cache, expected)


def _experts(target: Target) -> float:
    hidden, inner, count, tokens = 128, 192, 8, 40
    x = target.random(tokens, hidden, scale=0.5)
    router = target.random(tokens, count, seed=5)
    pairs = [
        (
            target.random(2 * inner, hidden, seed=10 + each, scale=hidden**-0.5),
            target.random(hidden, inner, seed=30 + each, scale=inner**-0.5),
        )
        for each in range(count)
    ]
    shares, chosen = target.kernels.route(router, 2, True)
    result = target.kernels.experts(x, shares, chosen, target.kernels.pack_experts(pairs))
    wide_pairs = experts.pack_experts((_wide(ups), _wide(downs)) for ups, downs in pairs)
    wide_shares, wide_chosen = experts.route(_wide(router), 2, True)
    expected = experts.experts(_wide(x), wide_shares, wide_chosen, wide_pairs)
    return _error(result, expected)


def _linear(form: quantized.WeightFormat, group: int | None) -> Check:
    def check(target: Target) -> float:
        x = target.random(20, _SIZE, scale=0.5)
        weight = quantized.quantize(target.random(256, _SIZE, scale=_SIZE**-0.5), form, group)
        result = target.kernels.pack_quantized(weight, None)(x)
        host = quantized.QuantizedWeight(weight.values.to(_CPU), weight.scales.to(_CPU), group)
        return _error(result, quantized.pack_quantized(host, None)(_wide(x)))

    return check


def _logprobs(target: Target) -> float:
    logits, tokens = target.random(4, _VOCABULARY, seed=3), [1, 500, 7, 999]
    told = target.kernels.logprobs(logits, tokens, 5, None)
    expected = token_logprobs.logprobs(logits, tokens, 5)
    found = [[one.logprob, *(value for _, value in one.top)] for one in told]
    wanted = [[one.logprob, *(value for _, value in one.top)] for one in expected]
    return _error(torch.tensor(found), torch.tensor(wanted))


def _tokens(target: Target) -> float:
    """Percent; greedy and drawn. Rounding may decide one in thousands, and none of these."""
    rows = 16
    logits = target.random(rows, _VOCABULARY, seed=4)
    draws = [
        sampling.Draw(
            temperature=(0.0, 0.7, 1.0, 1.3)[row % 4],
            top_k=(0, 20)[row // 4 % 2],
            top_p=(1.0, 0.9)[row // 8],
            seed=row,
            position=3,
        )
        for row in range(rows)
    ]
    found = target.kernels.sample(logits, draws, None)
    expected = sampling.sample(logits, draws)
    return 100 * float(np.mean([a == b for a, b in zip(found, expected, strict=True)]))


_LAYERS: Final[dict[str, Check]] = {
    "rms norm of a sum": _rms_norm,
    "layer norm": _layer_norm,
    "rotary": _rotary,
    "gate": _gate,
    "writing to the cache": _kv_write,
    "experts": _experts,
    "linear int8": _linear(quantized.WeightFormat.INT8, None),
    "linear int8, groups of 128": _linear(quantized.WeightFormat.INT8, 128),
    "linear fp8": _linear(quantized.WeightFormat.FP8, None),
    "log probabilities": _logprobs,
}
