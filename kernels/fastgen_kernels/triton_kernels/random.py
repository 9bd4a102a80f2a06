"""Random numbers by counter: those of the twin, bit by bit (Salmon et al., 2011)."""

import triton
import triton.language as tl


@triton.jit
def _round(c0, c1, c2, c3, k0, k1):
    m0 = tl.full([], 0xD2E7470EE14C6C93, tl.uint64)
    m1 = tl.full([], 0xCA5A826395121157, tl.uint64)
    high0, low0 = tl.umulhi(m0 + tl.zeros_like(c0), c0), m0 * c0
    high1, low1 = tl.umulhi(m1 + tl.zeros_like(c2), c2), m1 * c2
    return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0


@triton.jit
def words(group, seed, position):
    """Four random words of 64 bits, those of tokens 4 group … 4 group + 3.

    group, seed, position: uint64; group may be a block.
    """
    zero = tl.zeros_like(group)
    c0, c1, c2, c3 = group + 1, zero + position, zero, zero
    k0 = zero + seed
    k1 = zero
    step0 = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    step1 = tl.full([], 0xBB67AE8584CAA73B, tl.uint64)
    for _ in tl.static_range(9):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0 += step0
        k1 += step1
    return _round(c0, c1, c2, c3, k0, k1)


@triton.jit
def exponential(word):
    """Exponentially distributed float32 of a random word, within 1e-6 of its size of the twin's.

    -log(v) for v = (m + 1/2) / 2^52, m the upper 52 bits. Near v = 1 it is computed from 1 - v,
    which is exact, by the series of atanh: the numbers that win races are small.
    """
    upper = word >> 12
    most = tl.full([], (1 << 52) - 1, tl.uint64)
    v = (upper.to(tl.float32) + 0.5) * 2.220446049250313e-16
    u = ((most - upper).to(tl.float32) + 0.5) * 2.220446049250313e-16
    z = u / (2.0 - u)
    square = z * z
    series = 1.0 / 17
    for odd in tl.static_range(15, 0, -2):
        series = series * square + 1.0 / odd
    return tl.where(u <= 0.5, 2.0 * z * series, -tl.log(tl.maximum(v, 1e-20)))
