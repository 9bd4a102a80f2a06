// Sixteen floats for any CPU: what the others mean, in plain loops. For tests.
#pragma once

#include <cmath>

#include "element.h"

namespace fastgen {

struct Vec {
  float lane[LANES];
};

template <class Function>
INLINE Vec each(Function function) {
  Vec result;
  for (int i = 0; i < LANES; ++i) result.lane[i] = function(i);
  return result;
}

INLINE Vec splat(float x) {
  return each([&](int) { return x; });
}
template <class Element>
INLINE Vec load(const Element* p) {
  return each([&](int i) { return widened(p[i]); });
}
template <class Element>
INLINE void store(Element* p, Vec x) {
  for (int i = 0; i < LANES; ++i) narrow(x.lane[i], p + i);
}

INLINE Vec operator+(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
INLINE Vec operator-(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
INLINE Vec operator*(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
INLINE Vec operator/(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
// a · b + c
INLINE Vec mul_add(Vec a, Vec b, Vec c) {
  return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
// sum += *x · y
INLINE void add_product(const float* x, Vec y, Vec& sum) { sum = mul_add(splat(*x), y, sum); }
// Where b is NaN, so is the result.
INLINE Vec larger(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// a where x < limit, else b.
INLINE Vec where_below(Vec x, float limit, Vec a, Vec b) {
  return each([&](int i) { return x.lane[i] < limit ? a.lane[i] : b.lane[i]; });
}
// Lanes from `first` up to `last`; b in the others.
INLINE Vec lanes(Vec a, int first, int last, Vec b) {
  return each([&](int i) { return i >= first && i < last ? a.lane[i] : b.lane[i]; });
}
INLINE Vec rounded(Vec a) {
  return each([&](int i) { return std::nearbyint(a.lane[i]); });
}
// a · 2^whole, of whole numbers from -126 to 127.
constexpr bool SCALES_BY_ANY_POWER = false;
INLINE Vec scaled(Vec a, Vec whole) {
  return each([&](int i) { return a.lane[i] * std::exp2(whole.lane[i]); });
}

INLINE float sum(Vec a) {
  float total = 0;
  for (float x : a.lane) total += x;
  return total;
}
INLINE float largest(Vec a) {
  float most = a.lane[0];
  for (float x : a.lane) most = x > most ? x : most;
  return most;
}

template <class Element>
INLINE Vec pair_row(const Element* pair, int row) {
  return each([&](int i) { return widened(pair[pair_offset<Element>(i, row)]); });
}

template <class Element>
INLINE const Element* bf16_pairs(const Element* pair) {
  return pair;
}

// sum + x₀ · pair row 0 + x₁ · pair row 1, for each column.
template <class Element>
INLINE Vec add_pair_product(const bf16* x, const Element* pair, Vec sum) {
  sum = mul_add(splat(widened(x[0])), pair_row(pair, 0), sum);
  return mul_add(splat(widened(x[1])), pair_row(pair, 1), sum);
}

}  // namespace fastgen
