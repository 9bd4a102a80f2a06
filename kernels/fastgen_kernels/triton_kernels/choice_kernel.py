"""What the choice of a token is made of: edits of logits, thresholds of them, and the race."""

from typing import Final

import triton
import triton.language as tl

from fastgen_kernels.triton_kernels.draw_table import BANNED, SEEN
from fastgen_kernels.triton_kernels.random import exponential, words

_SEEN: Final = tl.constexpr(SEEN)
_BANNED: Final = tl.constexpr(BANNED)
_NO_TOKEN: Final = tl.constexpr(-1)


@triton.jit(do_not_specialize=["num_edits", "row_stride"])
def edit_kernel(
    logits, reals, edits, biases, num_edits, row_stride, block: tl.constexpr
):  # fmt: skip
    """Changes logits [R, V] in float32 at the table's places, each of which is there once."""
    edit = tl.program_id(0) * block + tl.arange(0, block)
    mask = edit < num_edits
    row = tl.load(edits + edit * 4, mask=mask, other=0)
    token = tl.load(edits + edit * 4 + 1, mask=mask, other=0)
    count = tl.load(edits + edit * 4 + 2, mask=mask, other=0).to(tl.float32)
    flags = tl.load(edits + edit * 4 + 3, mask=mask, other=0)
    repetition = tl.load(reals + row * 6 + 3, mask=mask, other=1.0)
    frequency = tl.load(reals + row * 6 + 4, mask=mask, other=0.0)
    presence = tl.load(reals + row * 6 + 5, mask=mask, other=0.0)
    place = logits + row * row_stride + token
    value = tl.load(place, mask=mask, other=0.0) + tl.load(biases + edit, mask=mask, other=0.0)
    repeated = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    value = tl.where((flags & _SEEN) != 0, repeated, value)
    value = tl.where(count > 0, value - (frequency * count + presence), value)
    tl.store(place, tl.where((flags & _BANNED) != 0, float("-inf"), value), mask=mask)


@triton.jit
def _logits(values, mask_words, token, size, masked, has_masks: tl.constexpr):
    """Adjusted logits of tokens in float32; -inf for what may not be drawn."""
    value = tl.load(values + token, mask=token < size, other=float("-inf")).to(tl.float32)
    if has_masks:
        word = tl.load(mask_words + token // 32, mask=(token < size) & masked, other=-1)
        value = tl.where(((word >> (token % 32)) & 1) != 0, value, float("-inf"))
    return value


@triton.jit
def _key(value):
    """uint32 in the order of float32; both zeros are one."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _value(key):
    """The float32 of a key."""
    bits = key.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ -2147483648, ~bits).to(tl.float32, bitcast=True)


@triton.jit
def _weight(value, best, temperature):
    """A token's probability as a share of the likeliest one's."""
    return tl.exp(tl.div_rn(value - best, temperature))


@triton.jit
def _threshold(
    values,
    mask_words,
    size,
    masked,
    best,
    temperature,
    floor,
    needed,
    has_masks: tl.constexpr,
    weighed: tl.constexpr,
    block: tl.constexpr,
):
    """The largest key of which, with those above, `needed` tokens or weight are; floor at least."""
    digit = tl.arange(0, 8).to(tl.uint32)
    found = tl.full([], 0, tl.uint32)
    shift = tl.full([], 29, tl.int32)
    for _ in range(11):
        candidates = found + (digit << shift.to(tl.uint32))
        sums = tl.zeros([8, block], tl.float32)
        for start in range(0, size, block):
            token = start + tl.arange(0, block)
            value = _logits(values, mask_words, token, size, masked, has_masks)
            reached = (_key(value)[None, :] >= candidates[:, None]) & (token < size)[None, :]
            weight = (
                _weight(value, best, temperature) if weighed else tl.full([block], 1.0, tl.float32)
            )
            sums += tl.where(reached, weight[None, :], 0.0)
        enough = (tl.sum(sums, 1) >= needed) | (candidates <= floor)
        more = tl.maximum(tl.sum(enough.to(tl.int32), 0) - 1, 0)
        found += more.to(tl.uint32) << shift.to(tl.uint32)
        shift = tl.maximum(shift - 3, 0)
    return found


@triton.jit
def _above(
    values, mask_words, size, masked, best, temperature, key, has_masks: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """How many tokens have a larger key, and their weight."""
    counts = tl.zeros([block], tl.int32)
    weights = tl.zeros([block], tl.float32)
    for start in range(0, size, block):
        token = start + tl.arange(0, block)
        value = _logits(values, mask_words, token, size, masked, has_masks)
        larger = (_key(value) > key) & (token < size)
        counts += larger.to(tl.int32)
        weights += tl.where(larger, _weight(value, best, temperature), 0.0)
    return tl.sum(counts, 0), tl.sum(weights, 0)


@triton.jit
def _kept(
    values, mask_words, size, masked, best, temperature, top_k, top_p, has_masks: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """A key, and how many tokens with that very key are kept beside all above it."""
    least = tl.full([], 0, tl.uint32)
    equals = size + tl.full([], 0, tl.int32)
    if top_k > 0:
        least = _threshold(
            values, mask_words, size, masked, best, temperature, least, top_k.to(tl.float32),
            has_masks, False, block,
        )  # fmt: skip
    if (top_k > 0) | (top_p < 1.0):
        count, weight = _above(
            values, mask_words, size, masked, best, temperature, least, has_masks, block
        )
        if top_k > 0:
            equals = top_k.to(tl.int32) - count
            weight += equals * _weight(_value(least), best, temperature)
        if top_p < 1.0:
            gathered = top_p * weight
            nucleus = _threshold(
                values, mask_words, size, masked, best, temperature, least, gathered,
                has_masks, True, block,
            )  # fmt: skip
            _, weight = _above(
                values, mask_words, size, masked, best, temperature, nucleus, has_masks, block
            )
            each = tl.maximum(_weight(_value(nucleus), best, temperature), 1e-38)
            missing = tl.minimum(tl.ceil((gathered - weight) / each), size.to(tl.float32))
            wanted = tl.maximum(missing.to(tl.int32), 1)
            equals = tl.where(nucleus == least, tl.minimum(equals, wanted), wanted)
            least = nucleus
    return least, equals


@triton.jit
def _race(
    values, mask_words, size, masked, best, temperature, min_p, least, equals, seed, position,
    has_masks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The token that comes in first; among equals the smaller id."""
    times = tl.full([block], float("inf"), tl.float32)
    tokens = tl.full([block], 2147483647, tl.int32)
    passed = tl.full([], 0, tl.int32)
    for start in range(0, size, block):
        token = start + tl.arange(0, block)
        value = _logits(values, mask_words, token, size, masked, has_masks)
        key = _key(value)
        equal = ((key == least) & (token < size)).to(tl.int32)
        rank = passed + tl.cumsum(equal, 0)
        passed += tl.sum(equal, 0)
        weight = _weight(value, best, temperature)
        kept = (key > least) | ((equal != 0) & (rank <= equals))
        kept = kept & (token < size) & (weight >= min_p)
        group = (start // 4 + tl.arange(0, block // 4)).to(tl.uint64)
        w0, w1, w2, w3 = words(group, seed, position)
        word = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
        time = tl.where(kept, exponential(word) / weight, float("inf"))
        sooner = time < times
        times = tl.where(sooner, time, times)
        tokens = tl.where(sooner, token, tokens)
    first = tl.min(times, 0)
    return tl.min(tl.where(times == first, tokens, 2147483647), 0)


@triton.jit(do_not_specialize=["num_words"])
def choose_kernel(
    raw,
    adjusted,
    reals,
    integers,
    masks,
    out,
    size,
    raw_stride,
    adjusted_stride,
    num_words,
    edited: tl.constexpr,
    has_masks: tl.constexpr,
    block: tl.constexpr,
):
    """One row of logits; -1 where its largest is no finite number. adjusted: after the edits."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(reals + row * 6)
    top_p = tl.load(reals + row * 6 + 1)
    min_p = tl.load(reals + row * 6 + 2)
    seed = tl.load(integers + row * 4).to(tl.uint64, bitcast=True)
    position = tl.load(integers + row * 4 + 1).to(tl.uint64, bitcast=True)
    top_k = tl.load(integers + row * 4 + 2)
    mask_row = tl.load(integers + row * 4 + 3)
    masked = mask_row >= 0
    mask_words = masks + tl.maximum(mask_row, 0) * num_words
    values = adjusted + row * adjusted_stride if edited else raw + row * raw_stride

    largest = tl.full([block], float("-inf"), tl.float32)
    numbers = tl.full([block], 1, tl.int32)
    highest = tl.full([block], float("-inf"), tl.float32)
    tokens = tl.arange(0, block)
    for start in range(0, size, block):
        token = start + tl.arange(0, block)
        plain = tl.load(raw + row * raw_stride + token, mask=token < size, other=float("-inf"))
        plain = plain.to(tl.float32)
        numbers = numbers & (plain == plain).to(tl.int32)
        largest = tl.maximum(largest, plain)
        value = _logits(values, mask_words, token, size, masked, has_masks)
        higher = value > highest
        highest = tl.where(higher, value, highest)
        tokens = tl.where(higher, token, tokens)
    most = tl.max(largest, 0)
    finite = (tl.min(numbers, 0) > 0) & (most > float("-inf")) & (most < float("inf"))
    best = tl.max(highest, 0)
    chosen = tl.min(tl.where(highest == best, tokens, 2147483647), 0)
    drawn = finite & (temperature > 0.0) & (best > float("-inf")) & (best < float("inf"))
    if drawn:
        least, equals = _kept(
            values, mask_words, size, masked, best, temperature, top_k, top_p, has_masks, block
        )
        chosen = _race(
            values, mask_words, size, masked, best, temperature, min_p, least, equals, seed,
            position, has_masks, block,
        )  # fmt: skip
    tl.store(out + row, tl.where(finite, chosen, _NO_TOKEN).to(tl.int64))
