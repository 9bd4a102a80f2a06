// Exponentials and the activations made of them, accurate to a few float32 roundings.
#pragma once

#include "simd.h"

namespace fastgen {

// What a result is kept as decides how exact it has to be.
template <class To>
constexpr bool IS_COARSE = sizeof(To) == 2;

// 2^x of -1/2 to 1/2: a Taylor polynomial, or one whose largest relative error, 8e-5, is least.
template <class To>
INLINE Vec power_of_fraction(Vec x) {
  if constexpr (IS_COARSE<To>) {
    Vec power = splat(0.0551717f);
    for (float coefficient : {0.2426111f, 0.6932610f, 0.9999281f})
      power = mul_add(power, x, splat(coefficient));
    return power;
  } else {
    Vec power = splat(1.5403530e-4f);
    for (float coefficient : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f,
                              6.9314718e-1f, 1.0f})
      power = mul_add(power, x, splat(coefficient));
    return power;
  }
}

// 2^x; 0 below 2^-126. To: what is made of it is kept as such.
template <class To = float>
INLINE Vec exp2(Vec x) {
  if constexpr (SCALES_BY_ANY_POWER) {
    const Vec whole = rounded(x);
    return scaled(power_of_fraction<To>(x - whole), whole);
  } else {
    const Vec bounded = larger(splat(-126.0f), x);
    const Vec capped = splat(0.0f) - larger(splat(-127.0f), splat(0.0f) - bounded);
    const Vec whole = rounded(capped);
    return where_below(x, -126.0f, splat(0.0f),
                       scaled(power_of_fraction<To>(capped - whole), whole));
  }
}

constexpr float LOG2_E = 1.44269504f;

template <class To = float>
INLINE Vec exp(Vec x) {
  return exp2<To>(x * splat(LOG2_E));
}

template <class To>
INLINE Vec sigmoid(Vec x) {
  return splat(1.0f) / (splat(1.0f) + exp<To>(splat(0.0f) - x));
}

// Abramowitz and Stegun, 7.1.26: within 1.5e-7.
INLINE Vec erf_of_positive(Vec x) {
  const Vec t = splat(1.0f) / mul_add(splat(0.3275911f), x, splat(1.0f));
  Vec power = splat(1.061405429f);
  for (float coefficient : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
    power = mul_add(power, t, splat(coefficient));
  return splat(1.0f) - power * t * exp(splat(0.0f) - x * x);
}

// To: what the result is kept as.
template <Activation ACTIVATION, class To>
INLINE Vec activated(Vec x) {
  const Vec zero = splat(0.0f);
  if constexpr (ACTIVATION == Activation::RELU) {
    return larger(zero, x);
  } else if constexpr (ACTIVATION == Activation::SILU) {
    return x * sigmoid<To>(x);
  } else if constexpr (ACTIVATION == Activation::GELU_TANH) {
    // (1 + tanh u) / 2 = sigmoid 2u
    const Vec cube = x * x * x;
    return x * sigmoid<To>(splat(1.5957691f) * mul_add(splat(0.044715f), cube, x));
  } else {
    const Vec size = larger(zero - x, x);
    const Vec erf = erf_of_positive(size * splat(0.70710678f));
    return splat(0.5f) * mul_add(size, erf, x);  // x · erf(x) is even
  }
}

}  // namespace fastgen
