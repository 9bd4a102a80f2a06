// Products of rows with packed weights.
#pragma once

#include <algorithm>
#include <type_traits>

#include "memory.h"
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

// sums += rows · columns, over `pairs` pair vectors `pair_stride` apart in each column vector. A
// row is summed up in the same order whatever rows it shares a tile with. Not inlined: what is live
// around it would take registers from the sums.
template <int ROWS, int VECTORS, int ROW_STRIDE, class Stored>
__attribute__((noinline)) void multiply(const Act* rows, const Stored* columns,
                                        size_t vector_stride, size_t pair_stride, int pairs,
                                        Vec (&sums)[ROWS][VECTORS]) {
  Vec own[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) own[row][v] = sums[row][v];
#pragma GCC unroll 1
  for (int pair = 0; pair < pairs; ++pair)
    add_products<ROW_STRIDE>(rows + 2 * pair, columns + pair * pair_stride, vector_stride, own);
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) sums[row][v] = own[row][v];
}

// Pair vectors as float ones.
template <class Stored>
INLINE void widen(const Stored* pairs, size_t count, float* to) {
  for (size_t i = 0; i < count; i += PAIR)
    for (int row = 0; row < 2; ++row) store(to + i + row * LANES, pair_row(pairs + i, row));
}

constexpr int PANEL = 2 * LANES;        // outputs that a tile computes together
constexpr int BLOCK_BYTES = 192 << 10;  // rows that stay in a core's cache while panels pass

// The thread's own.
inline float* space_to_widen(size_t count) {
  static thread_local Buffer<float> space;
  space.reserve(count);
  return space.data();
}

// All rows [first, last) of x with a panel whose two column vectors are `vector_stride` apart.
template <int INPUTS, int ROW_STRIDE, class Stored, class Done>
INLINE void compute_panel(const Act* x, int first, int last, const Stored* weights,
                          size_t vector_stride, const Vec (&bias)[2], Done&& done) {
  for (int row = first; row < last; row += TILE_ROWS) {
    with_constant<TILE_ROWS>(std::min(TILE_ROWS, last - row), [&](auto count) {
      constexpr int ROWS = decltype(count)::value, VECTORS = tile_vectors(ROWS);
      Vec both[ROWS][2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; v += VECTORS) {
        Vec sums[ROWS][VECTORS];
        for (auto& some : sums)
          for (int j = 0; j < VECTORS; ++j) some[j] = bias[v + j];
        multiply<ROWS, VECTORS, ROW_STRIDE>(x + size_t(row) * ROW_STRIDE,
                                            weights + v * vector_stride, vector_stride, PAIR,
                                            (INPUTS + 1) / 2, sums);
        for (int i = 0; i < ROWS; ++i)
          for (int j = 0; j < VECTORS; ++j) both[i][v + j] = sums[i][j];
      }
      for (int i = 0; i < ROWS; ++i) done(row + i, both[i]);
    });
  }
}

// Panels [first, last) of a layer for all rows of x. Panel p computes the outputs from PANEL_STEP
// · p and as many from SECOND further on; done(row, p, both) takes them. Where many rows meet
// weights that have to be widened, that is done once for all of them.
template <int INPUTS, int ROW_STRIDE, int PANEL_STEP, int SECOND, class Done>
void compute_panels(const Act* x, int rows, const Linear& linear, int first, int last,
                    Done&& done) {
  constexpr size_t COLUMN = round_up(INPUTS, 2), VECTOR = COLUMN * LANES;
  constexpr int BLOCK = std::max(TILE_ROWS, BLOCK_BYTES / int(INPUTS * sizeof(Act)));
  constexpr bool WIDENS = sizeof(Weight) < sizeof(Act);
  float* wide = nullptr;
  if (WIDENS && rows > TILE_ROWS) wide = space_to_widen(2 * VECTOR);
  for (int block = 0; block < rows; block += BLOCK) {
    const int end = std::min(rows, block + BLOCK);
    for (int panel = first; panel < last; ++panel) {
      const int output = panel * PANEL_STEP;
      const Weight* weights = linear.weights + output * COLUMN;
      Vec bias[2] = {splat(0.0f), splat(0.0f)};
      if (linear.bias) {
        bias[0] = load(linear.bias + output);
        bias[1] = load(linear.bias + output + SECOND);
      }
      const auto take = [&](int row, const Vec(&sums)[2]) { done(row, panel, sums); };
      if constexpr (WIDENS) {
        if (end - block > TILE_ROWS) {
          for (int v = 0; v < 2; ++v)
            widen(weights + v * SECOND * COLUMN, VECTOR, wide + v * VECTOR);
          compute_panel<INPUTS, ROW_STRIDE>(x, block, end, wide, VECTOR, bias, take);
          continue;
        }
      }
      compute_panel<INPUTS, ROW_STRIDE>(x, block, end, weights, SECOND * COLUMN, bias, take);
    }
  }
}

}  // namespace fastgen
