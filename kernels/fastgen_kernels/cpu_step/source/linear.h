// Products of rows with packed weights.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace fastgen {

// Weights [inputs / 2][16][2] for each 16 outputs, as pair vectors; bias: of all outputs, or null.
struct Linear {
  const Weight* weights;
  const float* bias;
};

// Calls function(n) with n in 1 … MOST as a constant.
template <int MOST, class Function>
INLINE void with_constant(int n, Function&& function) {
  if constexpr (MOST == 1) {
    function(std::integral_constant<int, 1>());
  } else if (n == MOST) {
    function(std::integral_constant<int, MOST>());
  } else {
    with_constant<MOST - 1>(n, function);
  }
}

// sums += rows · columns, over `pairs` pair vectors `pair_stride` apart in each column vector. A row
// is summed up in the same order whatever rows it shares a tile with.
template <int ROWS, int VECTORS, class Stored>
INLINE void multiply(const Act* rows, size_t row_stride, const Stored* columns,
                     size_t vector_stride, size_t pair_stride, int pairs,
                     Vec (&sums)[ROWS][VECTORS]) {
#pragma GCC unroll 1
  for (int pair = 0; pair < pairs; ++pair)
    add_products(rows + 2 * pair, row_stride, columns + pair * pair_stride, vector_stride, sums);
}

constexpr int PANEL = 2 * LANES;        // outputs that a tile computes together
constexpr int BLOCK_BYTES = 192 << 10;  // rows that stay in a core's cache while panels pass

// Panels [first, last) of a layer for all rows of x. Panel p computes the outputs from PANEL_STEP · p
// and as many from SECOND further on; done(row, p, both) takes them.
template <int INPUTS, int PANEL_STEP, int SECOND, class Done>
void compute_panels(const Act* x, int row_stride, int rows, const Linear& linear, int first, int last,
                    Done&& done) {
  constexpr int PAIRS = (INPUTS + 1) / 2;
  constexpr int BLOCK = std::max(TILE_ROWS, BLOCK_BYTES / int(INPUTS * sizeof(Act)));
  for (int block = 0; block < rows; block += BLOCK) {
    const int end = std::min(rows, block + BLOCK);
    for (int panel = first; panel < last; ++panel) {
      const int output = panel * PANEL_STEP;
      const Weight* weights = linear.weights + size_t(output) * 2 * PAIRS;
      Vec bias[2] = {splat(0.0f), splat(0.0f)};
      if (linear.bias) bias[0] = load(linear.bias + output), bias[1] = load(linear.bias + output + SECOND);
      for (int row = block; row < end; row += TILE_ROWS) {
        with_constant<TILE_ROWS>(std::min(TILE_ROWS, end - row), [&](auto count) {
          constexpr int ROWS = decltype(count)::value;
          Vec sums[ROWS][2];
          for (auto& both : sums) both[0] = bias[0], both[1] = bias[1];
          multiply(x + size_t(row) * row_stride, row_stride, weights, size_t(SECOND) * 2 * PAIRS,
                   PAIR, PAIRS, sums);
          for (int i = 0; i < ROWS; ++i) done(row + i, panel, sums[i]);
        });
      }
    }
  }
}

}  // namespace fastgen
