#include "step.h"

#include "logits.h"
#include "rotary.h"

namespace fastgen {
namespace {

constexpr int HIDDEN_STRIDE = round_up(HIDDEN, PANEL);
constexpr int INNER_STRIDE = round_up(INNER, PANEL);
constexpr int QKV_OUTPUTS = (HEADS + 2 * KV_HEADS) * HEAD_SIZE;
constexpr int QKV_STRIDE = round_up(QKV_OUTPUTS, PANEL);
constexpr int ATTENDED = HEADS * HEAD_SIZE;
constexpr bool IS_PARALLEL =
    ARRANGEMENT == Arrangement::PARALLEL || ARRANGEMENT == Arrangement::PARALLEL_NORMS;
constexpr int ROWS_AT_ONCE = 4;
constexpr int MOST_PANELS_AT_ONCE = 8;
constexpr int UNITS_PER_THREAD = 6;  // so that threads end at about the same time

void copy(const float* from, Act* to) {
  for (int i = 0; i < HIDDEN_STRIDE; i += LANES) store(to + i, load(from + i));
}

}  // namespace

Step::Step(const Weights& weights, int threads)
    : weights_(weights), team_(threads, LAYERS * STAGES + 2), states_(threads) {
  for (auto& state : states_) state = std::make_unique<AttentionState>();
}

void Step::reserve() {
  const size_t tokens = batch_.tokens;
  residual_.reserve(tokens * HIDDEN_STRIDE);
  x_.reserve(tokens * HIDDEN_STRIDE);
  if (ARRANGEMENT == Arrangement::PARALLEL_NORMS) second_x_.reserve(tokens * HIDDEN_STRIDE);
  qkv_.reserve(tokens * QKV_STRIDE);
  attended_.reserve(tokens * ATTENDED);
  inner_.reserve(tokens * INNER_STRIDE);
  tokens_.clear();
  for (int chunk = 0; chunk < batch_.chunks; ++chunk)
    for (int64_t i = 0; i < batch_.lengths[chunk]; ++i)
      tokens_.push_back({chunk, i + 1 == batch_.lengths[chunk], batch_.starts[chunk] + i});
  items_ = attention_items(batch_);
}

void Step::forward(const Batch& batch) {
  batch_ = batch;
  is_head_ = false;
  reserve();
  std::vector<int> counts{rows(int(batch.tokens)).count()};
  for (int layer = 0; layer < LAYERS; ++layer)
    for (int stage = 0; stage < STAGES; ++stage) counts.push_back(units(Stage(stage)));
  counts.push_back(rows(int(batch.wanted)).count());
  team_.run(*this, counts);
}

void Step::lm_head(const float* hidden, int rows, float* logits) {
  is_head_ = true;
  head_input_ = hidden;
  head_rows_ = rows;
  logits_ = logits;
  x_.reserve(size_t(rows) * HIDDEN_STRIDE);
  for (int row = 0; row < rows; ++row) {
    Act* x = x_.data() + size_t(row) * HIDDEN_STRIDE;
    for (int i = 0; i < HIDDEN; ++i) narrow(hidden[size_t(row) * HIDDEN + i], x + i);
  }
  team_.run(*this, {panels(VOCABULARY).count()});
}

Step::Units Step::rows(int total) const { return {ROWS_AT_ONCE, total}; }

Step::Units Step::panels(int outputs) const {
  const int total = (outputs + PANEL - 1) / PANEL;
  const int each = total / (UNITS_PER_THREAD * team_.threads());
  return {std::clamp(each, 1, MOST_PANELS_AT_ONCE), total};
}

int Step::units(Stage stage) const {
  switch (stage) {
    case NORM:
    case CACHE:
      return rows(int(batch_.tokens)).count();
    case FEED_FORWARD_NORM:
      return IS_PARALLEL ? 0 : rows(int(batch_.tokens)).count();
    case QKV:
      return panels(QKV_OUTPUTS).count();
    case ATTEND:
      return int(items_.size());
    case UP:
      return panels(GATED ? 2 * INNER : INNER).count();
    default:
      return panels(HIDDEN).count();
  }
}

void Step::work(int phase, int unit, int thread) {
  if (is_head_) {
    const Units units = panels(VOCABULARY);
    compute_logits<HIDDEN, HIDDEN_STRIDE, VOCABULARY>(
        x_.data(), head_rows_, weights_.lm_head, units.first(unit), units.last(unit), logits_);
    return;
  }
  const bool begins = phase == 0, ends = phase == LAYERS * STAGES + 1;
  if (begins || ends) {
    const Units units = rows(int(begins ? batch_.tokens : batch_.wanted));
    for (int row = units.first(unit); row < units.last(unit); ++row)
      begins ? embed(row) : finish(row);
  } else {
    work(Stage((phase - 1) % STAGES), (phase - 1) / STAGES, unit, thread);
  }
}

void Step::work(Stage stage, int layer, int unit, int thread) {
  const LayerWeights& weights = weights_.layers[layer];
  const Units some = rows(int(batch_.tokens));
  switch (stage) {
    case NORM:
      for (int row = some.first(unit); row < some.last(unit); ++row) norm(layer, row);
      break;
    case QKV: {
      const Units units = panels(QKV_OUTPUTS);
      compute_panels<HIDDEN, HIDDEN_STRIDE, PANEL, LANES>(
          x_.data(), int(batch_.tokens), weights.qkv, units.first(unit),
          units.last(unit), [&](int row, int panel, const Vec(&sums)[2]) {
            float* to = qkv_.data() + size_t(row) * QKV_STRIDE + panel * PANEL;
            store(to, sums[0]);
            store(to + LANES, sums[1]);
          });
      break;
    }
    case CACHE:
      for (int row = some.first(unit); row < some.last(unit); ++row) cache_row(layer, row);
      break;
    case ATTEND:
      attend(*states_[thread], batch_, items_[unit], qkv_.data(), QKV_STRIDE,
             layer_cache(static_cast<Cached*>(batch_.cache), batch_.blocks, layer), WINDOWS[layer],
             attended_.data());
      break;
    case OUTPUT:
      add_to_residual<ATTENDED, ATTENDED>(attended_.data(), weights.output, panels(HIDDEN), unit);
      break;
    case FEED_FORWARD_NORM:
      for (int row = some.first(unit); row < some.last(unit); ++row) feed_forward_norm(layer, row);
      break;
    case UP:
      up(weights, unit);
      break;
    default:
      add_to_residual<INNER, INNER_STRIDE>(inner_.data(), weights.down, panels(HIDDEN), unit);
  }
}

void Step::embed(int row) {
  constexpr int PAIRS = (HIDDEN + 1) / 2;
  const int64_t token = batch_.token_ids[row];
  const int64_t position = tokens_[row].position;
  float* to = residual_.data() + size_t(row) * HIDDEN_STRIDE;
  if (weights_.embedding) {
    for (int i = 0; i < HIDDEN; ++i) to[i] = widened(weights_.embedding[token * HIDDEN + i]);
  } else {
    const Weight* pairs = weights_.lm_head.weights + size_t(token / LANES) * PAIRS * PAIR;
    for (int i = 0; i < HIDDEN; ++i)
      to[i] = widened(pairs[i / 2 * PAIR + pair_offset<Weight>(int(token % LANES), i % 2)]);
  }
  if (weights_.positions)
    for (int i = 0; i < HIDDEN; ++i) to[i] += weights_.positions[size_t(position) * HIDDEN + i];
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
  const LayerCache cache = layer_cache(static_cast<Cached*>(batch_.cache), batch_.blocks, layer);
  const int offset = int(position % BLOCK_SIZE);
  for (int head = 0; head < KV_HEADS; ++head) {
    const size_t at = LayerCache::at(batch_.block(chunk, position), head);
    write_key(cache.keys + at, offset, qkv + (HEADS + head) * HEAD_SIZE);
    write_value(cache.values + at, offset, qkv + (HEADS + KV_HEADS + head) * HEAD_SIZE, ends);
  }
}

template <int INPUTS, int STRIDE>
void Step::add_to_residual(const Act* x, const Linear& linear, Units units, int unit) {
  compute_panels<INPUTS, STRIDE, PANEL, LANES>(
      x, int(batch_.tokens), linear, units.first(unit), units.last(unit),
      [&](int row, int panel, const Vec(&sums)[2]) {
        float* to = residual_.data() + size_t(row) * HIDDEN_STRIDE + panel * PANEL;
        store(to, load(to) + sums[0]);
        store(to + LANES, load(to + LANES) + sums[1]);
      });
}

void Step::up(const LayerWeights& layer, int unit) {
  const Act* x = ARRANGEMENT == Arrangement::PARALLEL_NORMS ? second_x_.data() : x_.data();
  const Units units = panels(GATED ? 2 * INNER : INNER);
  constexpr int STEP = GATED ? LANES : PANEL, SECOND = GATED ? INNER : LANES;
  compute_panels<HIDDEN, HIDDEN_STRIDE, STEP, SECOND>(
      x, int(batch_.tokens), layer.up, units.first(unit), units.last(unit),
      [&](int row, int panel, const Vec(&sums)[2]) {
        Act* to = inner_.data() + size_t(row) * INNER_STRIDE + panel * STEP;
        const Vec first = activated<ACTIVATION>(sums[0]);
        if constexpr (GATED) {
          store(to, first * sums[1]);
        } else {
          store(to, first);
          store(to + LANES, activated<ACTIVATION>(sums[1]));
        }
      });
}

void Step::finish(int row) {
  const float* from = residual_.data() + size_t(batch_.rows[row]) * HIDDEN_STRIDE;
  float both[2][HIDDEN_STRIDE];
  std::copy(from, from + HIDDEN_STRIDE, both[0]);
  if constexpr (ARRANGEMENT == Arrangement::POST_NORM)
    normalise<HIDDEN, NORM_KIND>(both[0], weights_.layers[LAYERS - 1].feed_forward_norm, NORM_EPS,
                                 both[0]);
  if constexpr (FINAL_NORM) normalise<HIDDEN, NORM_KIND>(both[0], weights_.norm, NORM_EPS, both[0]);
  std::copy(both[0], both[0] + HIDDEN, batch_.hidden + size_t(row) * HIDDEN);
}

}  // namespace fastgen

// The library's interface: 0 is success, 1 that there is no memory for so large a step.
template <class Function>
int tried(Function function) {
  try {
    function();
    return 0;
  } catch (...) {
    return 1;
  }
}

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED fastgen::Step* fastgen_create(const fastgen::Weights* weights, int threads) {
  try {
    return new fastgen::Step(*weights, threads);
  } catch (...) {
    return nullptr;
  }
}

EXPORTED void fastgen_destroy(fastgen::Step* step) { delete step; }

EXPORTED int fastgen_forward(fastgen::Step* step, const fastgen::Batch* batch) {
  return tried([&] { step->forward(*batch); });
}

EXPORTED int fastgen_lm_head(fastgen::Step* step, const float* hidden, int rows, float* logits) {
  return tried([&] { step->lm_head(hidden, rows, logits); });
}
}
