#include "step.h"

#include <numeric>

#include "logits.h"

namespace fastgen {
namespace {

constexpr int ROWS_AT_ONCE = 4;
constexpr int MOST_PANELS_AT_ONCE = 8;
constexpr int UNITS_PER_THREAD = 6;  // so that threads end at about the same time

}  // namespace

Step::Step(const Weights& weights, int threads)
    : weights_(weights), team_(threads, LAYERS * STAGES), states_(threads) {
  for (auto& state : states_) state = std::make_unique<AttentionState>();
}

void Step::divide() {
  all_rows_.resize(batch_.tokens);
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
  wanted_rows_.assign(batch_.rows, batch_.rows + batch_.wanted);
  std::sort(wanted_rows_.begin(), wanted_rows_.end());
  wanted_rows_.erase(std::unique(wanted_rows_.begin(), wanted_rows_.end()), wanted_rows_.end());
  items_ = attention_items(batch_, all_rows_, team_.threads());
  last_items_ = attention_items(batch_, wanted_rows_, team_.threads());
}

void Step::reserve() {
  const size_t tokens = batch_.tokens;
  residual_.reserve(tokens * HIDDEN_STRIDE);
  x_.reserve(tokens * HIDDEN_STRIDE);
  if (ARRANGEMENT == Arrangement::PARALLEL_NORMS) second_x_.reserve(tokens * HIDDEN_STRIDE);
  qkv_.reserve(tokens * QKV_STRIDE);
  attended_.reserve(tokens * ATTENDED);
  inner_.reserve(tokens * INNER_STRIDE);
  if constexpr (EXPERTS > 0) mixture_.reserve(tokens);
  tokens_.clear();
  for (int chunk = 0; chunk < batch_.chunks; ++chunk)
    for (int64_t i = 0; i < batch_.lengths[chunk]; ++i)
      tokens_.push_back({chunk, i + 1 == batch_.lengths[chunk], batch_.starts[chunk] + i});
}

void Step::forward(const Batch& batch) {
  batch_ = batch;
  is_head_ = false;
  divide();
  reserve();
  phases_.clear();
  std::vector<int> counts;
  const auto add = [&](int stage, int layer) {
    const int count = units(Stage(stage), layer);
    if (count == 0) return;
    phases_.push_back({Stage(stage), layer});
    counts.push_back(count);
  };
  add(EMBED, 0);
  for (int layer = 0; layer < LAYERS; ++layer)
    for (int stage = NORM; stage < FINISH; ++stage) add(stage, layer);
  add(FINISH, LAYERS - 1);
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
    std::fill(x + HIDDEN, x + HIDDEN_STRIDE, Act{});
  }
  team_.run(*this, {panels(VOCABULARY).count()});
}

Step::Units Step::rows(int total) const { return {ROWS_AT_ONCE, total}; }

Step::Units Step::panels(int outputs) const {
  const int total = (outputs + PANEL - 1) / PANEL;
  const int each = total / (UNITS_PER_THREAD * team_.threads());
  return {std::clamp(each, 1, MOST_PANELS_AT_ONCE), total};
}

const std::vector<Item>& Step::items(int layer) const {
  return layer + 1 == LAYERS ? last_items_ : items_;
}

int Step::num_rows(Stage stage, int layer) const {
  if (stage == FINISH) return int(batch_.wanted);
  const bool wanted_alone = layer + 1 == LAYERS && stage >= GATHER;
  return int(wanted_alone ? wanted_rows_.size() : batch_.tokens);
}

int Step::units(Stage stage, int layer) const {
  const int count = num_rows(stage, layer);
  const bool is_mixture = weights_.layers[layer].is_mixture();
  if (is_of_mixture(stage)) return is_mixture ? mixture_units(stage, count) : 0;
  switch (stage) {
    case QKV:
      return panels(QKV_OUTPUTS).count();
    case ATTEND:
      return int(items(layer).size());
    case GATHER:
      return 0 < count && count < batch_.tokens ? 1 : 0;
    case OUTPUT:
      return count ? panels(HIDDEN).count() : 0;
    case UP:
      return count && !is_mixture ? panels(up_outputs(INNER)).count() : 0;
    case DOWN:
      return count && !is_mixture ? panels(HIDDEN).count() : 0;
    case FEED_FORWARD_NORM:
      return IS_PARALLEL ? 0 : rows(count).count();
    default:
      return rows(count).count();
  }
}

void Step::work(int phase, int unit, int thread) {
  if (is_head_) {
    const Units units = panels(VOCABULARY);
    compute_logits<HIDDEN, HIDDEN_STRIDE, VOCABULARY>(
        x_.data(), head_rows_, weights_.lm_head, units.first(unit), units.last(unit), logits_);
  } else {
    work(phases_[phase].stage, phases_[phase].layer, unit, thread);
  }
}

LayerCache Step::cache(int layer) const {
  return layer_cache(static_cast<Cached*>(batch_.cache), batch_.blocks, layer);
}

void Step::work(Stage stage, int layer, int unit, int thread) {
  const LayerWeights& weights = weights_.layers[layer];
  const int count = num_rows(stage, layer);
  if (is_of_mixture(stage)) return mix(stage, weights, count, unit);
  switch (stage) {
    case QKV:
      qkv(weights, unit);
      break;
    case ATTEND: {
      const std::vector<Item>& all = items(layer);
      attend(*states_[thread], batch_, all[unit], all[std::min<size_t>(unit + 1, all.size() - 1)],
             qkv_.data(), QKV_STRIDE, cache(layer), WINDOWS[layer], attended_.data());
      break;
    }
    case GATHER:
      gather();
      break;
    case OUTPUT:
      add_to_residual<ATTENDED, ATTENDED>(attended_.data(), count, weights.output, unit);
      break;
    case UP: {
      const Units units = panels(up_outputs(INNER));
      activate<HIDDEN, INNER>(fed(), count, weights.up, units.first(unit), units.last(unit),
                              inner_.data());
      break;
    }
    case DOWN:
      add_to_residual<INNER, INNER_STRIDE>(inner_.data(), count, weights.down, unit);
      break;
    default: {
      const Units some = rows(count);
      for (int row = some.first(unit); row < some.last(unit); ++row) each_row(stage, layer, row);
    }
  }
}

void Step::each_row(Stage stage, int layer, int row) {
  switch (stage) {
    case EMBED:
      return embed(row);
    case NORM:
      return norm(layer, row);
    case CACHE:
      return cache_row(layer, row);
    case FEED_FORWARD_NORM:
      return feed_forward_norm(layer, row);
    default:
      return finish(row);
  }
}

void Step::qkv(const LayerWeights& layer, int unit) {
  const Units units = panels(QKV_OUTPUTS);
  compute_panels<HIDDEN, HIDDEN_STRIDE, PANEL, LANES>(
      x_.data(), int(batch_.tokens), layer.qkv, units.first(unit), units.last(unit),
      [&](int row, int panel, const Vec(&sums)[2]) {
        float* to = qkv_.data() + size_t(row) * QKV_STRIDE + panel * PANEL;
        store(to, sums[0]);
        store(to + LANES, sums[1]);
      });
}

template <int INPUTS, int STRIDE>
void Step::add_to_residual(const Act* x, int rows, const Linear<LayerWeight>& linear, int unit) {
  const Units units = panels(HIDDEN);
  compute_panels<INPUTS, STRIDE, PANEL, LANES>(
      x, rows, linear, units.first(unit), units.last(unit),
      [&](int row, int panel, const Vec(&sums)[2]) {
        float* to = residual_.data() + size_t(row) * HIDDEN_STRIDE + panel * PANEL;
        store(to, load(to) + sums[0]);
        store(to + LANES, load(to + LANES) + sums[1]);
      });
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
