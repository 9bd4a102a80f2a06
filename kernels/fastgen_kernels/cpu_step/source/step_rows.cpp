// What a step computes row by row.
#include "rotary.h"
#include "step.h"

namespace fastgen {
namespace {

void copy(const float* from, Act* to) {
  for (int i = 0; i < HIDDEN_STRIDE; i += LANES) store(to + i, load(from + i));
}

template <int STRIDE, class Element>
void move_row(Element* rows, size_t from, size_t to) {
  std::copy(rows + from * STRIDE, rows + (from + 1) * STRIDE, rows + to * STRIDE);
}

// An output's weights as they are stored, of a layer of HIDDEN inputs.
template <class Stored>
void unpack(const Linear<Stored>& linear, int64_t output, float* to) {
  constexpr int PAIRS = (HIDDEN + 1) / 2;
  const Stored* pairs = linear.weights + size_t(output / LANES) * PAIRS * PAIR;
  for (int i = 0; i < HIDDEN; ++i)
    to[i] = widened(pairs[i / 2 * PAIR + pair_offset<Stored>(int(output % LANES), i % 2)]);
}

}  // namespace

void Step::embed(int row) {
  const int64_t token = batch_.token_ids[row];
  const int64_t position = tokens_[row].position;
  float* to = residual_.data() + size_t(row) * HIDDEN_STRIDE;
  if (weights_.embedding) {
    for (int i = 0; i < HIDDEN; ++i) to[i] = widened(weights_.embedding[token * HIDDEN + i]);
  } else {
    unpack(weights_.lm_head, token, to);
  }
  if (weights_.positions)
    for (int i = 0; i < HIDDEN; ++i) to[i] += weights_.positions[size_t(position) * HIDDEN + i];
  // Of an odd number the last input is multiplied together with what lies behind it: by zero.
  std::fill(to + HIDDEN, to + HIDDEN_STRIDE, 0.0f);
}

// Into x what attention reads; under POST_NORM first the norm after the layer before.
void Step::norm(int layer, int row) {
  float* residual = residual_.data() + size_t(row) * HIDDEN_STRIDE;
  Act* x = x_.data() + size_t(row) * HIDDEN_STRIDE;
  const LayerWeights& weights = weights_.layers[layer];
  if constexpr (ARRANGEMENT == Arrangement::POST_NORM) {
    if (layer > 0)
      normalise<HIDDEN, NORM_KIND>(residual, weights_.layers[layer - 1].feed_forward_norm, NORM_EPS,
                                   residual);
    copy(residual, x);
    return;
  }
  normalise<HIDDEN, NORM_KIND>(residual, weights.attention_norm, NORM_EPS, x);
  if constexpr (ARRANGEMENT == Arrangement::PARALLEL_NORMS)
    normalise<HIDDEN, NORM_KIND>(residual, weights.feed_forward_norm, NORM_EPS,
                                 second_x_.data() + size_t(row) * HIDDEN_STRIDE);
}

void Step::feed_forward_norm(int layer, int row) {
  float* residual = residual_.data() + size_t(row) * HIDDEN_STRIDE;
  Act* x = x_.data() + size_t(row) * HIDDEN_STRIDE;
  const LayerWeights& weights = weights_.layers[layer];
  if constexpr (ARRANGEMENT == Arrangement::POST_NORM) {
    normalise<HIDDEN, NORM_KIND>(residual, weights.attention_norm, NORM_EPS, residual);
    copy(residual, x);
  } else {
    normalise<HIDDEN, NORM_KIND>(residual, weights.feed_forward_norm, NORM_EPS, x);
  }
}

// Rotates the row's queries in place, and writes its rotated keys and its values into the cache.
void Step::cache_row(int layer, int row) {
  const LayerWeights& weights = weights_.layers[layer];
  const auto [chunk, ends, position] = tokens_[row];
  float* qkv = qkv_.data() + size_t(row) * QKV_STRIDE;
  for (int head = 0; head < HEADS + KV_HEADS; ++head) {
    float* values = qkv + head * HEAD_SIZE;
    if constexpr (QUERY_KEY_NORM) {
      const float* norm = head < HEADS ? weights.query_norm : weights.key_norm;
      normalise<HEAD_SIZE, Norm::RMS>(values, {norm, nullptr}, NORM_EPS, values);
    }
    if constexpr (ROTATED > 0) {
      constexpr int HALF = ROTATED / 2;
      rotate(values, weights_.cos + position * HALF, weights_.sin + position * HALF);
    }
  }
  const LayerCache written = cache(layer);
  const int offset = int(position % BLOCK_SIZE);
  for (int head = 0; head < KV_HEADS; ++head) {
    const size_t at = LayerCache::at(batch_.block(chunk, position), head);
    write_key(written.keys + at, offset, qkv + (HEADS + head) * HEAD_SIZE);
    write_value(written.values + at, offset, qkv + (HEADS + KV_HEADS + head) * HEAD_SIZE, ends);
  }
}

// Brings the wanted rows to the front, each to where only rows lie that have moved or that nobody
// wants.
void Step::gather() {
  for (size_t to = 0; to < wanted_rows_.size(); ++to) {
    const size_t from = size_t(wanted_rows_[to]);
    if (from == to) continue;
    move_row<HIDDEN_STRIDE>(residual_.data(), from, to);
    move_row<ATTENDED>(attended_.data(), from, to);
    if constexpr (ARRANGEMENT == Arrangement::PARALLEL)
      move_row<HIDDEN_STRIDE>(x_.data(), from, to);
    if constexpr (ARRANGEMENT == Arrangement::PARALLEL_NORMS)
      move_row<HIDDEN_STRIDE>(second_x_.data(), from, to);
  }
}

void Step::finish(int row) {
  const auto place =
      std::lower_bound(wanted_rows_.begin(), wanted_rows_.end(), batch_.rows[row]);
  const float* from = residual_.data() + (place - wanted_rows_.begin()) * HIDDEN_STRIDE;
  float both[2][HIDDEN_STRIDE];
  std::copy(from, from + HIDDEN_STRIDE, both[0]);
  if constexpr (ARRANGEMENT == Arrangement::POST_NORM)
    normalise<HIDDEN, NORM_KIND>(both[0], weights_.layers[LAYERS - 1].feed_forward_norm, NORM_EPS,
                                 both[0]);
  if constexpr (FINAL_NORM) normalise<HIDDEN, NORM_KIND>(both[0], weights_.norm, NORM_EPS, both[0]);
  std::copy(both[0], both[0] + HIDDEN, batch_.hidden + size_t(row) * HIDDEN);
}

}  // namespace fastgen
