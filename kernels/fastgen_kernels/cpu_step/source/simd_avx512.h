// Sixteen floats in one AVX-512 register.
#pragma once

// GCC's header leaves lanes undefined where a mask makes no use of them, and warns of it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "element.h"

namespace fastgen {

struct Vec {
  __m512 all;
};

INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x.all); }
INLINE Vec load(const bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
INLINE void store(bf16* p, Vec x) {
  const __m256bh narrowed = _mm512_cvtneps_pbh(x.all);
  std::memcpy(p, &narrowed, sizeof narrowed);
}

INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.all, b.all)}; }
INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.all, b.all)}; }
INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.all, b.all)}; }
INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.all, b.all)}; }
// a · b + c
INLINE Vec mul_add(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
// sum += *x · y
INLINE void add_product(const float* x, Vec y, Vec& sum) { sum = mul_add(splat(*x), y, sum); }
// Where b is NaN, so is the result.
INLINE Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.all, b.all)}; }
INLINE uint32_t first_lanes(int count) {
  return count <= 0 ? 0 : count >= LANES ? 0xffff : (1u << count) - 1;
}
// Lanes from `first` up to `last`; b in the others.
INLINE Vec lanes(Vec a, int first, int last, Vec b) {
  const auto inside = __mmask16(first_lanes(last) & ~first_lanes(first));
  return {_mm512_mask_mov_ps(b.all, inside, a.all)};
}
INLINE Vec rounded(Vec a) {
  return {_mm512_roundscale_ps(a.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a · 2^whole, 0 or infinity where that is out of range.
constexpr bool SCALES_BY_ANY_POWER = true;
INLINE Vec scaled(Vec a, Vec whole) { return {_mm512_scalef_ps(a.all, whole.all)}; }

INLINE float sum(Vec a) { return _mm512_reduce_add_ps(a.all); }
INLINE float largest(Vec a) { return _mm512_reduce_max_ps(a.all); }

INLINE Vec pair_row(const float* pair, int row) { return load(pair + LANES * row); }
INLINE Vec pair_row(const int8_t* pair, int row) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pair + LANES * row));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
INLINE Vec pair_row(const bf16* pair, int row) {
  const __m512i words = _mm512_loadu_si512(pair);
  if (row == 0) return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
  return {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(int(0xffff0000))))};
}

// A pair vector of brain floats. Whole numbers of eight bits are exact as such.
INLINE __m512i bf16_pairs(const bf16* pair) { return _mm512_loadu_si512(pair); }
INLINE __m512i bf16_pairs(const int8_t* pair) {
  const __m512i first = _mm512_castps_si512(pair_row(pair, 0).all);
  return _mm512_or_si512(_mm512_srli_epi32(first, 16), _mm512_castps_si512(pair_row(pair, 1).all));
}

// sum + x₀ · pair row 0 + x₁ · pair row 1, for each column.
INLINE Vec add_pair_product(const bf16* x, __m512i pairs, Vec sum) {
  int both;
  std::memcpy(&both, x, sizeof both);
  return {_mm512_dpbf16_ps(sum.all, (__m512bh)_mm512_set1_epi32(both),
                           (__m512bh)pairs)};
}

}  // namespace fastgen
