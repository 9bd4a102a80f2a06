// Rotary position embedding (Su et al., 2021, section 3.2) of the pairs (i, i + ROTATED / 2).
#pragma once

#include "simd.h"

namespace fastgen {

// cos, sin: [ROTATED / 2] of the token's position.
INLINE void rotate(float* head, const float* cos, const float* sin) {
  constexpr int HALF = ROTATED / 2;
#pragma GCC ivdep
  for (int i = 0; i < HALF; ++i) {
    const float first = head[i], second = head[i + HALF];
    head[i] = first * cos[i] - second * sin[i];
    head[i + HALF] = second * cos[i] + first * sin[i];
  }
}

}  // namespace fastgen
