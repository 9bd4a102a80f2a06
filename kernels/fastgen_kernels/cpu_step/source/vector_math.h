// Exponentials and the activations made of them, accurate to a few float32 roundings.
#pragma once

#include "simd.h"

namespace fastgen {

// 2^x; 0 below 2^-126. The fraction's power is a Taylor polynomial.
INLINE Vec exp2(Vec x) {
  const Vec bounded = larger(splat(-126.0f), x);
  const Vec capped = splat(0.0f) - larger(splat(-127.0f), splat(0.0f) - bounded);
  const Vec whole = rounded(capped), rest = capped - whole;
  Vec power = splat(1.5403530e-4f);
  for (float coefficient : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f,
                            6.9314718e-1f, 1.0f})
    power = mul_add(power, rest, splat(coefficient));
  return where_below(x, -126.0f, splat(0.0f), power * power_of_two(whole));
}

constexpr float LOG2_E = 1.44269504f;

INLINE Vec exp(Vec x) { return exp2(x * splat(LOG2_E)); }

INLINE Vec sigmoid(Vec x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }

// Abramowitz and Stegun, 7.1.26: within 1.5e-7.
INLINE Vec erf_of_positive(Vec x) {
  const Vec t = splat(1.0f) / mul_add(splat(0.3275911f), x, splat(1.0f));
  Vec power = splat(1.061405429f);
  for (float coefficient : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
    power = mul_add(power, t, splat(coefficient));
  return splat(1.0f) - power * t * exp(splat(0.0f) - x * x);
}

template <Activation ACTIVATION>
INLINE Vec activated(Vec x) {
  const Vec zero = splat(0.0f);
  if constexpr (ACTIVATION == Activation::RELU) {
    return larger(zero, x);
  } else if constexpr (ACTIVATION == Activation::SILU) {
    return x * sigmoid(x);
  } else if constexpr (ACTIVATION == Activation::GELU_TANH) {
    // (1 + tanh u) / 2 = sigmoid 2u
    const Vec cube = x * x * x;
    return x * sigmoid(splat(1.5957691f) * mul_add(splat(0.044715f), cube, x));
  } else {
    const Vec size = larger(zero - x, x);
    const Vec erf = erf_of_positive(size * splat(0.70710678f));
    return splat(0.5f) * mul_add(size, erf, x);  // x · erf(x) is even
  }
}

}  // namespace fastgen
