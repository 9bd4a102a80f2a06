// The first of a feed-forward part's two layers.
#pragma once

#include "linear.h"
#include "vector_math.h"

namespace fastgen {

// Outputs of the first layer of a part that is WIDTH wide inside: gates and values, gates first.
constexpr int up_outputs(int width) { return GATED ? 2 * width : width; }

// Panels [first, last) of activations [rows, WIDTH padded to PANEL], gated or not, of x [rows,
// INPUTS padded to PANEL].
template <int INPUTS, int WIDTH>
void activate(const Act* x, int rows, const Linear<LayerWeight>& up, int first, int last,
              Act* inner) {
  constexpr int STEP = GATED ? LANES : PANEL, SECOND = GATED ? WIDTH : LANES;
  compute_panels<INPUTS, round_up(INPUTS, PANEL), STEP, SECOND>(
      x, rows, up, first, last, [&](int row, int panel, const Vec(&sums)[2]) {
        Act* to = inner + size_t(row) * round_up(WIDTH, PANEL) + panel * STEP;
        const Vec value = activated<ACTIVATION, Act>(sums[0]);
        if constexpr (GATED) {
          store(to, value * sums[1]);
        } else {
          store(to, value);
          store(to + LANES, activated<ACTIVATION, Act>(sums[1]));
        }
      });
}

}  // namespace fastgen
