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

// A head's numbers as the cache keeps them.
struct alignas(64) CachedHead {
  Cached all[HEAD_SIZE];

  explicit CachedHead(const float* values) {
    for (int i = 0; i < HEAD_SIZE; i += LANES) store(all + i, load(values + i));
  }
};

// keys: of the head in the token's block; offset: the token's in the block.
INLINE void write_key(Cached* keys, int offset, const float* key) {
  const CachedHead head(key);
  Cached* to = keys + offset / LANES * KEY_VECTOR_STRIDE;
  constexpr int SECOND = pair_offset<Cached>(0, 1);
  to += pair_offset<Cached>(offset % LANES, 0);
#pragma GCC unroll 8
  for (int i = 0; i < HEAD_SIZE; i += 2, to += PAIR) {
    to[0] = head.all[i];
    to[SECOND] = head.all[i + 1];
  }
}

// ends: nobody has written the next token yet. Then it becomes zero, as attention multiplies pairs.
INLINE void write_value(Cached* values, int offset, const float* value, bool ends) {
  const CachedHead head(value);
  const int row = offset % 2;
  Cached* to = values + offset / 2 * VALUE_PAIR_STRIDE;
  const Cached nothing{};
  for (int i = 0; i < HEAD_SIZE; i += LANES, to += PAIR)
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; ++lane) {
      to[pair_offset<Cached>(lane, row)] = head.all[i + lane];
      if (ends && row == 0) to[pair_offset<Cached>(lane, 1)] = nothing;
    }
}

}  // namespace fastgen
