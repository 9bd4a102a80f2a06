// Sixteen floats in two AVX2 registers.
#pragma once

#include <immintrin.h>

#include "element.h"

namespace fastgen {

struct Vec {
  __m256 low, high;
};

INLINE Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}

INLINE __m256 widened8(const bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
INLINE Vec load(const bf16* p) { return {widened8(p), widened8(p + 8)}; }

// As `narrow`.
INLINE __m128i narrowed8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i kept = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
  const __m256i words = _mm256_srli_epi32(kept, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
INLINE void store(bf16* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrowed8(x.low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrowed8(x.high));
}

INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a · b + c
INLINE Vec mul_add(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// sum += *x · y. In this order and into the sum's own register: GCC 12 else keeps what it broadcasts,
// spills sums for it, and a tile of six rows takes 1.6 times as long.
INLINE void add_product(const float* x, Vec y, Vec& sum) {
  __m256 all;
  asm volatile("vbroadcastss %1, %0" : "=x"(all) : "m"(*x));
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum.low) : "x"(all), "x"(y.low));
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum.high) : "x"(all), "x"(y.high));
}
// Where b is NaN, so is the result.
INLINE Vec larger(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
// a where x < limit, else b.
INLINE Vec where_below(Vec x, float limit, Vec a, Vec b) {
  const __m256 bound = _mm256_set1_ps(limit);
  return {_mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, bound, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, bound, _CMP_LT_OQ))};
}
// Lanes from `first` up to `last`; b in the others.
INLINE Vec lanes(Vec a, int first, int last, Vec b) {
  const __m256i from = _mm256_set1_epi32(first - 1), to = _mm256_set1_epi32(last);
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
  const auto inside = [&](__m256i lane) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_cmpgt_epi32(lane, from), _mm256_cmpgt_epi32(to, lane)));
  };
  return {_mm256_blendv_ps(b.low, a.low, inside(low)),
          _mm256_blendv_ps(b.high, a.high, inside(high))};
}
INLINE Vec rounded(Vec a) {
  constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, NEAREST), _mm256_round_ps(a.high, NEAREST)};
}
INLINE __m256 power_of_two8(__m256 whole) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
// a · 2^whole, of whole numbers from -126 to 127.
constexpr bool SCALES_BY_ANY_POWER = false;
INLINE Vec scaled(Vec a, Vec whole) {
  return a * Vec{power_of_two8(whole.low), power_of_two8(whole.high)};
}

INLINE float sum(Vec a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
INLINE float largest(Vec a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

INLINE Vec pair_row(const float* pair, int row) { return load(pair + LANES * row); }
INLINE __m256 widened8(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
INLINE Vec pair_row(const int8_t* pair, int row) {
  return {widened8(pair + LANES * row), widened8(pair + LANES * row + 8)};
}
INLINE Vec pair_row(const bf16* pair, int row) {
  const auto* words = reinterpret_cast<const __m256i*>(pair);
  const __m256i low = _mm256_loadu_si256(words), high = _mm256_loadu_si256(words + 1);
  if (row == 0)
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(low, upper)),
          _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
}

}  // namespace fastgen
