// Where keys and values lie in a block of the paged cache.
#pragma once

#include "simd.h"

namespace fastgen {

// Of a layer's keys or values a block holds, for each head, [BLOCK_SIZE × HEAD_SIZE] elements:
// keys as pair vectors [16 tokens][dimension pair], their columns tokens; values as pair vectors
// [token pair][16 dimensions], their columns dimensions. So attention multiplies them as they lie.
constexpr int HEAD_ELEMENTS = BLOCK_SIZE * HEAD_SIZE;
constexpr int KEY_VECTOR_STRIDE = LANES * HEAD_SIZE;
constexpr int VALUE_PAIR_STRIDE = 2 * HEAD_SIZE;

struct LayerCache {
  Cached* keys;
  Cached* values;

  static size_t at(int64_t block, int head) {
    return (size_t(block) * KV_HEADS + head) * HEAD_ELEMENTS;
  }
};

// all: [layers, 2, blocks, BLOCK_SIZE, KV_HEADS, HEAD_SIZE].
INLINE LayerCache layer_cache(Cached* all, int64_t blocks, int layer) {
  const size_t part = LayerCache::at(blocks, 0);
  return {all + 2 * layer * part, all + (2 * layer + 1) * part};
}

// keys: of the head in the token's block; offset: the token's in the block.
INLINE void write_key(Cached* keys, int offset, const float* key) {
  Cached* to = keys + offset / LANES * KEY_VECTOR_STRIDE;
  for (int i = 0; i < HEAD_SIZE; ++i)
    narrow(key[i], to + i / 2 * PAIR + pair_offset<Cached>(offset % LANES, i % 2));
}

// ends: nobody has written the next token yet. Then it becomes zero, as attention multiplies pairs.
INLINE void write_value(Cached* values, int offset, const float* value, bool ends) {
  Cached* to = values + offset / 2 * VALUE_PAIR_STRIDE;
  const int row = offset % 2;
  for (int i = 0; i < HEAD_SIZE; ++i) {
    Cached* pair = to + i / LANES * PAIR;
    narrow(value[i], pair + pair_offset<Cached>(i % LANES, row));
    if (ends && row == 0) narrow(0.0f, pair + pair_offset<Cached>(i % LANES, 1));
  }
}

}  // namespace fastgen
