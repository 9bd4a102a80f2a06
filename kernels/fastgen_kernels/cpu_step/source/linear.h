// Products of rows with packed weights.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace fastgen {

// Weights [inputs / 2][16][2] for each 16 outputs, as pair vectors. scales: of whole numbers
// [groups of GROUP_INPUTS inputs][16] for each 16 outputs, else null; bias: of all outputs, or null.
template <class Stored>
struct Linear {
  const Stored* weights;
  const float* scales;
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

// What is read next, brought nearer meanwhile: of each column vector `step` bytes for each pair.
struct Ahead {
  const void* from;
  size_t step;

  Ahead after(int pairs) const { return {static_cast<const char*>(from) + pairs * step, step}; }
};

// sums += rows · columns, over `pairs` pair vectors `pair_stride` apart in each column vector. A
// row is summed up in the same order whatever rows it shares a tile with. Not inlined: what is live
// around it would take registers from the sums.
template <int ROWS, int VECTORS, int ROW_STRIDE, class Stored>
__attribute__((noinline)) void multiply(const Act* rows, const Stored* columns,
                                        size_t vector_stride, size_t pair_stride, int pairs,
                                        Ahead ahead, Vec (&sums)[ROWS][VECTORS]) {
  Vec own[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) own[row][v] = sums[row][v];
#pragma GCC unroll 1
  for (int pair = 0; pair < pairs; ++pair) {
    // One or two rows of wide weights compute nothing meanwhile, and the machine looks ahead well.
    if constexpr (ROWS > 2 || sizeof(Stored) == 1)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v)
        __builtin_prefetch(static_cast<const char*>(ahead.from) + pair * ahead.step +
                               v * vector_stride * sizeof(Stored),
                           0, 2);
    add_products<ROW_STRIDE>(rows + 2 * pair, columns + pair * pair_stride, vector_stride, own);
  }
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) sums[row][v] = own[row][v];
}

constexpr int PANEL = 2 * LANES;        // outputs that a tile computes together
constexpr int BLOCK_BYTES = 192 << 10;  // rows that stay in a core's cache while panels pass

// Rows of the next tile where so many are left. One of three or four rows would be slow.
inline int tile_rows(int left) {
  const int rest = left % TILE_ROWS;
  return left > TILE_ROWS && (rest == 3 || rest == 4) ? TILE_ROWS - 1 : std::min(TILE_ROWS, left);
}

// One panel of a layer. Its second column vector lies `vector_stride` weights and `scale_stride`
// scales after the first; so does that of the next panel, which begins at `next`.
template <class Stored>
struct Panel {
  const Stored* weights;
  const Stored* next;
  const float* scales;
  size_t vector_stride, scale_stride;
  Vec bias[2];
};

// sums += rows · the panel's column vectors from v on.
template <int INPUTS, int ROW_STRIDE, int ROWS, int VECTORS, class Stored>
INLINE void add_row_products(const Act* rows, const Panel<Stored>& panel, int v, Ahead ahead,
                             Vec (&sums)[ROWS][VECTORS]) {
  constexpr int PAIRS = (INPUTS + 1) / 2;
  const Stored* weights = panel.weights + v * panel.vector_stride;
  if constexpr (!std::is_same_v<Stored, int8_t>) {
    multiply<ROWS, VECTORS, ROW_STRIDE>(rows, weights, panel.vector_stride, PAIR, PAIRS, ahead,
                                        sums);
  } else {
    constexpr int GROUP_PAIRS = GROUP_INPUTS / 2;
    const float* scales = panel.scales + v * panel.scale_stride;
    for (int pair = 0; pair < PAIRS; pair += GROUP_PAIRS, scales += LANES) {
      Vec group[ROWS][VECTORS];
      for (auto& some : group)
        for (Vec& one : some) one = splat(0.0f);
      multiply<ROWS, VECTORS, ROW_STRIDE>(
          rows + 2 * pair, weights + pair * PAIR, panel.vector_stride, PAIR,
          std::min(GROUP_PAIRS, PAIRS - pair), ahead.after(pair), group);
      for (int j = 0; j < VECTORS; ++j) {
        const Vec scale = load(scales + j * panel.scale_stride);
        for (int i = 0; i < ROWS; ++i) sums[i][j] = mul_add(group[i][j], scale, sums[i][j]);
      }
    }
  }
}

// All rows [first, last) of x with a panel.
template <int INPUTS, int ROW_STRIDE, class Stored, class Done>
INLINE void compute_panel(const Act* x, int first, int last, const Panel<Stored>& panel,
                          Done&& done) {
  constexpr size_t PAIR_BYTES = PAIR * sizeof(Stored), BYTES = (INPUTS + 1) / 2 * PAIR_BYTES;
  for (int row = first, rows; row < last; row += rows) {
    rows = tile_rows(last - row);
    with_constant<TILE_ROWS>(rows, [&](auto count) {
      constexpr int ROWS = decltype(count)::value, VECTORS = tile_vectors(ROWS);
      // Each row brings its part of the next panel.
      const size_t begun = BYTES * (row - first) / (last - first);
      const size_t step = PAIR_BYTES * ROWS / (last - first);
      Vec both[ROWS][2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; v += VECTORS) {
        Vec sums[ROWS][VECTORS];
        for (auto& some : sums)
          for (int j = 0; j < VECTORS; ++j) some[j] = panel.bias[v + j];
        const auto* next = reinterpret_cast<const char*>(panel.next + v * panel.vector_stride);
        add_row_products<INPUTS, ROW_STRIDE>(x + size_t(row) * ROW_STRIDE, panel, v,
                                             Ahead{next + begun, step}, sums);
        for (int i = 0; i < ROWS; ++i)
          for (int j = 0; j < VECTORS; ++j) both[i][v + j] = sums[i][j];
      }
      for (int i = 0; i < ROWS; ++i) done(row + i, both[i]);
    });
  }
}

// Panels [first, last) of a layer for all rows of x. Panel p computes the outputs from PANEL_STEP
// · p and as many from SECOND further on; done(row, p, both) takes them.
template <int INPUTS, int ROW_STRIDE, int PANEL_STEP, int SECOND, class Stored, class Done>
void compute_panels(const Act* x, int rows, const Linear<Stored>& linear, int first, int last,
                    Done&& done) {
  constexpr size_t COLUMN = round_up(INPUTS, 2);
  constexpr size_t GROUPS = (INPUTS + GROUP_INPUTS - 1) / GROUP_INPUTS;
  constexpr int BLOCK = std::max(TILE_ROWS, BLOCK_BYTES / int(INPUTS * sizeof(Act)));
  for (int block = 0; block < rows; block += BLOCK) {
    const int end = std::min(rows, block + BLOCK);
    for (int number = first; number < last; ++number) {
      const size_t output = size_t(number) * PANEL_STEP;
      const Stored* weights = linear.weights + output * COLUMN;
      Panel<Stored> panel{weights,         weights + PANEL_STEP * COLUMN,
                          nullptr,         SECOND * COLUMN,
                          SECOND * GROUPS, {splat(0.0f), splat(0.0f)}};
      if (linear.scales) panel.scales = linear.scales + output * GROUPS;
      if (linear.bias) {
        panel.bias[0] = load(linear.bias + output);
        panel.bias[1] = load(linear.bias + output + SECOND);
      }
      compute_panel<INPUTS, ROW_STRIDE>(
          x, block, end, panel, [&](int row, const Vec(&sums)[2]) { done(row, number, sums); });
    }
  }
}

}  // namespace fastgen
