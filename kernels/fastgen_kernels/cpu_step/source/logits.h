// The last linear layer, whose outputs leave the step.
#pragma once

#include "linear.h"

namespace fastgen {

// Panels [first, last) of logits [rows, OUTPUTS]; the last may be part of a panel.
template <int INPUTS, int ROW_STRIDE, int OUTPUTS>
void compute_logits(const Act* x, int rows, const Linear<LayerWeight>& linear, int first, int last,
                    float* logits) {
  compute_panels<INPUTS, ROW_STRIDE, PANEL, LANES>(
      x, rows, linear, first, last, [&](int row, int panel, const Vec(&sums)[2]) {
        float* to = logits + size_t(row) * OUTPUTS + panel * PANEL;
        if ((panel + 1) * PANEL <= OUTPUTS) {
          store(to, sums[0]);
          store(to + LANES, sums[1]);
        } else {
          float both[PANEL];
          store(both, sums[0]);
          store(both + LANES, sums[1]);
          std::copy(both, both + OUTPUTS % PANEL, to);
        }
      });
}

}  // namespace fastgen
