// A ragged batch as the caller hands it over, and what is derived from it once per step.
#pragma once

#include <cstdint>
#include <vector>

#include "shape.h"

namespace fastgen {

// `chunks` chunks of `tokens` tokens together. starts, lengths: first position and number of tokens
// of each; block_tables: [chunks, table_width]; rows: of the `wanted` hidden states.
struct Batch {
  int64_t tokens, chunks, table_width, wanted, blocks;
  const int64_t* token_ids;
  const int64_t* starts;
  const int64_t* lengths;
  const int64_t* block_tables;
  const int64_t* rows;
  void* cache;
  float* hidden;

  int64_t block(int chunk, int64_t position) const {
    return block_tables[chunk * table_width + position / BLOCK_SIZE];
  }
};

// Queries [first, first + count) of a chunk, seen by one key/value head. row: of the first.
struct Item {
  int chunk, head, first, count, row;
};

constexpr int GROUP = HEADS / KV_HEADS;  // query heads that share a key/value head
constexpr int ITEM_QUERIES = GROUP >= 48 ? 1 : 48 / GROUP;

// Attention of the queries in `rows`, ascending; some between them may be computed too. The dearest
// ones are dealt to the threads' shares first, and are the first of these.
std::vector<Item> attention_items(const Batch& batch, const std::vector<int64_t>& rows,
                                  int threads);

}  // namespace fastgen
