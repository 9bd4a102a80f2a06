// Root mean square norm (Zhang and Sennrich, 2019, section 4) and layer norm (Ba et al., 2016).
#pragma once

#include <cmath>

#include "simd.h"

namespace fastgen {

// weight, bias: [WIDTH padded], zero in the padding; bias may be null.
struct NormWeights {
  const float* weight;
  const float* bias;
};

template <int WIDTH, class Function>
INLINE float summed(Function function) {
  Vec total = splat(0.0f);
  for (int i = 0; i < WIDTH; i += LANES)
    total = total + lanes(function(i), 0, WIDTH - i, splat(0.0f));
  return sum(total);
}

// Norm of x [WIDTH], into `to` with zeros in the padding, which may be x itself.
template <int WIDTH, Norm KIND, class Out>
void normalise(const float* x, const NormWeights& norm, float eps, Out* to) {
  float mean = 0;
  if constexpr (KIND == Norm::LAYER)
    mean = summed<WIDTH>([&](int i) { return load(x + i); }) / WIDTH;
  const Vec centre = splat(mean);
  const float square = summed<WIDTH>([&](int i) {
    const Vec rest = load(x + i) - centre;
    return rest * rest;
  });
  const Vec scale = splat(1.0f / std::sqrt(square / WIDTH + eps));
  for (int i = 0; i < round_up(WIDTH, LANES); i += LANES) {
    const Vec weight = load(norm.weight + i), bias = norm.bias ? load(norm.bias + i) : splat(0.0f);
    store(to + i, mul_add((load(x + i) - centre) * scale, weight, bias));
  }
}

}  // namespace fastgen
