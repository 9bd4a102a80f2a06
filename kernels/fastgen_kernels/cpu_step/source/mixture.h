// A mixture of experts (Shazeer et al., 2017, section 2; Jiang et al., 2024, section 2.1).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "feed_forward.h"
#include "memory.h"

namespace fastgen {

struct Expert {
  Linear<LayerWeight> up;
  Linear<LayerWeight> down;
};

// One layer's rows on their way through its COUNT experts, each WIDTH wide inside. Slot row · CHOSEN
// + k is of a row's k-th likeliest expert. Slots are sorted by expert, so that each expert computes
// once, over its rows only; a slot's place is where it lies then. A template, so that models without
// experts have none of its code.
template <int COUNT, int CHOSEN, int WIDTH, bool RENORMALISE>
class Mixture {
 public:
  // Throws std::bad_alloc.
  void reserve(size_t rows) {
    const size_t slots = rows * CHOSEN;
    logits_.reserve(rows * LOGITS);
    x_.reserve(slots * STRIDE);
    inner_.reserve(slots * round_up(WIDTH, PANEL));
    outputs_.reserve(slots * STRIDE);
    experts_.resize(slots);
    places_.resize(slots);
    shares_.resize(slots);
  }

  // Most experts that any of so many rows can choose.
  static int most_busy(int rows) { return int(std::min<int64_t>(COUNT, int64_t(rows) * CHOSEN)); }

  // Chooses the experts of rows [first, last) of x [rows, HIDDEN padded].
  void route(const Act* x, const Linear<Weight>& router, int first, int last) {
    compute_panels<HIDDEN, STRIDE, PANEL, LANES>(
        x + size_t(first) * STRIDE, last - first, router, 0, LOGITS / PANEL,
        [&](int row, int panel, const Vec(&sums)[2]) {
          float* to = logits_.data() + size_t(first + row) * LOGITS + panel * PANEL;
          store(to, sums[0]);
          store(to + LANES, sums[1]);
        });
    for (int row = first; row < last; ++row) choose(row);
  }

  // Sorts the rows' slots by expert, those of an expert in their own order.
  void arrange(int rows) {
    const size_t slots = size_t(rows) * CHOSEN;
    begins_.fill(0);
    for (size_t slot = 0; slot < slots; ++slot) ++begins_[experts_[slot] + 1];
    num_busy_ = 0;
    for (int expert = 0; expert < COUNT; ++expert) {
      if (begins_[expert + 1] > 0) busy_[num_busy_++] = expert;
      begins_[expert + 1] += begins_[expert];
    }
    std::array<int, COUNT + 1> next = begins_;
    for (size_t slot = 0; slot < slots; ++slot) places_[slot] = next[experts_[slot]]++;
  }

  // Brings a row of x to its slots' places.
  void spread(const Act* x, int row) {
    const Act* from = x + size_t(row) * STRIDE;
    for (int k = 0; k < CHOSEN; ++k)
      std::copy(from, from + STRIDE, x_.data() + size_t(places_[row * CHOSEN + k]) * STRIDE);
  }

  // Panels [first, last) of an expert's layers, for its rows. busy: it is this one of the experts
  // that were chosen, of which there may be fewer.
  void up(const Expert* experts, int busy, int first, int last) {
    if (busy >= num_busy_) return;
    const int expert = busy_[busy], begin = begins_[expert];
    activate<HIDDEN, WIDTH>(x_.data() + size_t(begin) * STRIDE, begins_[expert + 1] - begin,
                            experts[expert].up, first, last,
                            inner_.data() + size_t(begin) * round_up(WIDTH, PANEL));
  }

  void down(const Expert* experts, int busy, int first, int last) {
    if (busy >= num_busy_) return;
    const int expert = busy_[busy], begin = begins_[expert];
    compute_panels<WIDTH, round_up(WIDTH, PANEL), PANEL, LANES>(
        inner_.data() + size_t(begin) * round_up(WIDTH, PANEL), begins_[expert + 1] - begin,
        experts[expert].down, first, last, [&](int row, int panel, const Vec(&sums)[2]) {
          float* to = outputs_.data() + size_t(begin + row) * STRIDE + panel * PANEL;
          store(to, sums[0]);
          store(to + LANES, sums[1]);
        });
  }

  // Adds the outputs of a row's experts to its residual, by their shares and the likeliest first:
  // what it becomes does not depend on other rows.
  void combine(int row, float* residual) const {
    for (int i = 0; i < STRIDE; i += LANES) {
      Vec total = splat(0.0f);
      for (int k = 0; k < CHOSEN; ++k) {
        const size_t slot = size_t(row) * CHOSEN + k;
        const Vec output = load(outputs_.data() + size_t(places_[slot]) * STRIDE + i);
        total = mul_add(splat(shares_[slot]), output, total);
      }
      store(residual + i, load(residual + i) + total);
    }
  }

 private:
  static constexpr int STRIDE = round_up(HIDDEN, PANEL), LOGITS = round_up(COUNT, PANEL);

  // The likeliest experts of a row, by the softmax of its logits; of equal ones the first.
  void choose(int row) {
    float* logits = logits_.data() + size_t(row) * LOGITS;
    const Vec most = splat(*std::max_element(logits, logits + COUNT));
    Vec sums = splat(0.0f);
    for (int i = 0; i < COUNT; i += LANES) {
      const Vec powers = exp(load(logits + i) - most);
      sums = sums + lanes(powers, 0, COUNT - i, splat(0.0f));
      store(logits + i, powers);
    }
    float* shares = shares_.data() + size_t(row) * CHOSEN;
    float total = 0;
    for (int k = 0; k < CHOSEN; ++k) {
      // Not max_element: of logits that are no numbers, too, no expert may be chosen twice.
      int best = -1;
      for (int expert = 0; expert < COUNT; ++expert)
        if (!(logits[expert] < 0) && (best < 0 || logits[expert] > logits[best])) best = expert;
      experts_[size_t(row) * CHOSEN + k] = best;
      shares[k] = logits[best];
      total += logits[best];
      logits[best] = -1;
    }
    const float whole = RENORMALISE ? total : sum(sums);
    for (int k = 0; k < CHOSEN; ++k) shares[k] /= whole;
  }

  Buffer<float> logits_, outputs_;
  Buffer<Act> x_, inner_;
  std::vector<int> experts_, places_;  // of each slot
  std::vector<float> shares_;          // of each slot
  std::array<int, COUNT + 1> begins_;  // place of an expert's first slot
  std::array<int, COUNT> busy_;        // the experts that were chosen, ascending
  int num_busy_ = 0;
};

}  // namespace fastgen
