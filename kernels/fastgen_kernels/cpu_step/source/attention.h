// Causal attention over the paged cache, with a running maximum (Milakov and Gimelshein, 2018).
#pragma once

#include <cmath>

#include "batch.h"
#include "cache.h"
#include "linear.h"
#include "vector_math.h"

namespace fastgen {

constexpr int KEYS = BLOCK_SIZE < 64 ? BLOCK_SIZE : 64;  // tokens that are looked at together
constexpr int KEY_VECTORS = KEYS / LANES;
constexpr int HEAD_VECTORS = HEAD_SIZE / LANES;
constexpr int ITEM_ROWS = ITEM_QUERIES * GROUP;
constexpr float UNSEEN = -1e30f;

// What an item keeps while it walks over its context. A row is a query of one head.
struct alignas(64) AttentionState {
  Act queries[ITEM_ROWS][HEAD_SIZE];
  float outputs[ITEM_ROWS][HEAD_SIZE];
  float totals[ITEM_ROWS][LANES];
  float most[ITEM_ROWS];
  float scores[TILE_ROWS][KEYS];
  Act shares[TILE_ROWS][KEYS];
};

// Column vectors at a time: few rows need more of them to keep the multipliers busy.
constexpr int vectors_at_once(int rows, int vectors) {
  const int most = std::max(1, SUMS_AT_ONCE / rows);
  return vectors % 4 == 0 && most >= 4 ? 4 : vectors % 2 == 0 && most >= 2 ? 2 : 1;
}

template <int VECTORS, int ROWS, class Function>
INLINE void each_tile(int vectors, Function&& function) {
  constexpr int EACH = vectors_at_once(ROWS, VECTORS);
  for (int v = 0; v < vectors; v += EACH) function(v, std::integral_constant<int, EACH>());
}

// The row sees keys [first, last) of the tile: its scores become shares of the row's maximum.
INLINE void take_shares(AttentionState& state, int row, int in_tile, int first, int last) {
  float* scores = state.scores[in_tile];
  Act* shares = state.shares[in_tile];
  if (first >= last) {
    for (int v = 0; v < KEY_VECTORS; ++v) store(shares + v * LANES, splat(0.0f));
    return;
  }
  Vec seen[KEY_VECTORS];
  for (int v = 0; v < KEY_VECTORS; ++v) {
    seen[v] = load(scores + v * LANES);
    if (first > 0 || last < KEYS)
      seen[v] = lanes(seen[v], first - v * LANES, last - v * LANES, splat(UNSEEN));
  }
  Vec high = seen[0];
  for (int v = 1; v < KEY_VECTORS; ++v) high = larger(high, seen[v]);
  const float most = largest(high);
  Vec total = load(state.totals[row]);
  if (most > state.most[row]) {
    const Vec shrink = exp2(splat(state.most[row] - most));
    state.most[row] = most;
    total = total * shrink;
    for (int i = 0; i < HEAD_SIZE; i += LANES)
      store(state.outputs[row] + i, load(state.outputs[row] + i) * shrink);
  }
  for (int v = 0; v < KEY_VECTORS; ++v) {
    const Vec share = exp2<Act>(seen[v] - splat(state.most[row]));
    total = total + share;
    store(shares + v * LANES, share);
  }
  store(state.totals[row], total);
}

// A head's tile of keys and values.
struct Tile {
  const Cached* keys;
  const Cached* values;
};

inline Tile tile_at(const Batch& batch, const Item& item, const LayerCache& cache, int64_t tile) {
  const size_t at = LayerCache::at(batch.block(item.chunk, tile), item.head);
  const int offset = int(tile % BLOCK_SIZE);
  return {cache.keys + at + offset / LANES * KEY_VECTOR_STRIDE,
          cache.values + at + offset / 2 * VALUE_PAIR_STRIDE};
}

// ROWS rows from `row` on over `some`, the tile at position `tile`, of which `present` are written.
template <int ROWS>
void attend_tile(AttentionState& state, int row, int64_t position, int64_t tile, int present,
                 int window, const Tile& some, const Tile& next) {
  const int written = (present + LANES - 1) / LANES;
  each_tile<KEY_VECTORS, ROWS>(written, [&](int v, auto vectors) {
    Vec sums[ROWS][decltype(vectors)::value];
    for (auto& some : sums)
      for (Vec& one : some) one = splat(0.0f);
    multiply<ROWS, decltype(vectors)::value, HEAD_SIZE>(
        state.queries[row], some.keys + v * KEY_VECTOR_STRIDE, KEY_VECTOR_STRIDE, PAIR, HEAD_SIZE / 2,
        Ahead{next.keys + v * KEY_VECTOR_STRIDE, PAIR * sizeof(Cached)}, sums);
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < decltype(vectors)::value; ++j)
        store(state.scores[i] + (v + j) * LANES, sums[i][j]);
  });
  for (int i = 0; i < ROWS; ++i) {
    const int64_t own = position + (row + i) / GROUP, last = own + 1 - tile;
    take_shares(state, row + i, i, int(std::max<int64_t>(0, last - window)),
                int(std::min<int64_t>(last, KEYS)));
  }
  each_tile<HEAD_VECTORS, ROWS>(HEAD_VECTORS, [&](int v, auto vectors) {
    constexpr int VECTORS = decltype(vectors)::value;
    Vec sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j)
        sums[i][j] = load(state.outputs[row + i] + (v + j) * LANES);
    multiply<ROWS, VECTORS, KEYS>(
        state.shares[0], some.values + v * PAIR, PAIR, VALUE_PAIR_STRIDE, (present + 1) / 2,
        Ahead{next.values + v * PAIR, VALUE_PAIR_STRIDE * sizeof(Cached)}, sums);
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j)
        store(state.outputs[row + i] + (v + j) * LANES, sums[i][j]);
  });
}

// Positions of the tiles that an item sees, KEYS apart.
struct Tiles {
  int64_t first, last;
};

inline Tiles tiles_of(const Batch& batch, const Item& item, int window) {
  const int64_t position = batch.starts[item.chunk] + item.first;
  return {std::max<int64_t>(0, position + 1 - window) / KEYS * KEYS,
          (position + item.count - 1) / KEYS * KEYS};
}

// queries: [tokens, row_stride], rotated; attended: [tokens, HEADS × HEAD_SIZE]. following: the item
// that is most likely next on this thread.
inline void attend(AttentionState& state, const Batch& batch, const Item& item,
                   const Item& following, const float* queries, int row_stride,
                   const LayerCache& cache, int window, Act* attended) {
  const int rows = item.count * GROUP;
  const Vec scale = splat(LOG2_E / std::sqrt(float(HEAD_SIZE)));
  for (int row = 0; row < rows; ++row) {
    const float* query = queries + size_t(item.row + row / GROUP) * row_stride +
                         (item.head * GROUP + row % GROUP) * HEAD_SIZE;
    for (int i = 0; i < HEAD_SIZE; i += LANES) {
      store(state.queries[row] + i, load(query + i) * scale);
      store(state.outputs[row] + i, splat(0.0f));
    }
    store(state.totals[row], splat(0.0f));
    state.most[row] = UNSEEN;
  }
  const int64_t position = batch.starts[item.chunk] + item.first;
  const Tiles tiles = tiles_of(batch, item, window);
  for (int64_t tile = tiles.first; tile <= tiles.last; tile += KEYS) {
    const Tile some = tile_at(batch, item, cache, tile);
    const Tile next =
        tile < tiles.last
            ? tile_at(batch, item, cache, tile + KEYS)
            : tile_at(batch, following, cache, tiles_of(batch, following, window).first);
    for (int row = 0; row < rows; row += TILE_ROWS) {
      const int count = std::min(TILE_ROWS, rows - row);
      const int64_t furthest = position + (row + count - 1) / GROUP;
      if (furthest < tile) continue;
      const int present = int(std::min<int64_t>(KEYS, furthest + 1 - tile));
      with_constant<TILE_ROWS>(count, [&](auto constant) {
        attend_tile<decltype(constant)::value>(state, row, position, tile, present, window, some,
                                               next);
      });
    }
  }
  for (int row = 0; row < rows; ++row) {
    Act* to = attended + size_t(item.row + row / GROUP) * HEADS * HEAD_SIZE +
              (item.head * GROUP + row % GROUP) * HEAD_SIZE;
    const Vec share = splat(1.0f / sum(load(state.totals[row])));
    for (int i = 0; i < HEAD_SIZE; i += LANES)
      store(to + i, load(state.outputs[row] + i) * share);
  }
}

}  // namespace fastgen
