// The sixteen-lane vector of the machine that the step is compiled for, and what it multiplies.
#pragma once

#include "shape.h"

#if defined(FASTGEN_AVX512_BF16)
#include "simd_avx512.h"
#elif defined(FASTGEN_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace fastgen {

// Rows and column vectors of a tile: as many sums as fit into the registers beside what is
// multiplied. With few rows two vectors at a time keep the multipliers busy, else one may do.
#if defined(FASTGEN_AVX512_BF16)
constexpr int TILE_ROWS = 12;
constexpr int SUMS_AT_ONCE = 24;
constexpr int tile_vectors(int) { return 2; }
#else
constexpr int TILE_ROWS = 6;
constexpr int SUMS_AT_ONCE = 4;
constexpr int tile_vectors(int rows) { return rows <= 2 ? 2 : 1; }
#endif

// x, 2 neighbouring elements of a row, times a pair vector. As brain floats where the machine
// multiplies those: then activations are kept as such.
#if !defined(FASTGEN_AVX2)
template <int ROW_STRIDE, int ROWS, int VECTORS, class Stored>
INLINE void add_products(const bf16* x, const Stored* pairs, size_t vector_stride,
                         Vec (&sums)[ROWS][VECTORS]) {
  decltype(bf16_pairs(pairs)) weights[VECTORS];
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v) weights[v] = bf16_pairs(pairs + v * vector_stride);
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      sums[row][v] = add_pair_product(x + row * ROW_STRIDE, weights[v], sums[row][v]);
}
#endif

template <int ROW_STRIDE, int ROWS, int VECTORS, class Stored>
INLINE void add_products(const float* x, const Stored* pairs, size_t vector_stride,
                         Vec (&sums)[ROWS][VECTORS]) {
#pragma GCC unroll 2
  for (int parity = 0; parity < 2; ++parity)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      const Vec weights = pair_row(pairs + v * vector_stride, parity);
#pragma GCC unroll 16
      for (int row = 0; row < ROWS; ++row)
        add_product(x + row * ROW_STRIDE + parity, weights, sums[row][v]);
    }
}

}  // namespace fastgen
