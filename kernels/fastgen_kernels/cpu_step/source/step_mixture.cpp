// What a step computes in layers with a mixture of experts.
#include "step.h"

namespace fastgen {

// An expert's panels are divided as those of a dense layer. How many experts get rows is not known
// before the step is run: units beyond those have nothing to do.
int Step::mixture_units(Stage stage, int count) const {
  if constexpr (EXPERTS > 0) {
    switch (stage) {
      case ARRANGE:
        return count ? 1 : 0;
      case EXPERT_UP:
        return mixture_.most_busy(count) * panels(up_outputs(EXPERT_INNER)).count();
      case EXPERT_DOWN:
        return mixture_.most_busy(count) * panels(HIDDEN).count();
      default:
        return rows(count).count();
    }
  }
  return 0;
}

void Step::mix(Stage stage, const LayerWeights& layer, int count, int unit) {
  if constexpr (EXPERTS > 0) {
    const Units some = rows(count), ups = panels(up_outputs(EXPERT_INNER)), downs = panels(HIDDEN);
    switch (stage) {
      case ROUTE:
        return mixture_.route(fed(), layer.router, some.first(unit), some.last(unit));
      case ARRANGE:
        return mixture_.arrange(count);
      case SPREAD:
        for (int row = some.first(unit); row < some.last(unit); ++row) mixture_.spread(fed(), row);
        return;
      case EXPERT_UP: {
        const int each = ups.count(), part = unit % each;
        return mixture_.up(layer.experts, unit / each, ups.first(part), ups.last(part));
      }
      case EXPERT_DOWN: {
        const int each = downs.count(), part = unit % each;
        return mixture_.down(layer.experts, unit / each, downs.first(part), downs.last(part));
      }
      default:
        for (int row = some.first(unit); row < some.last(unit); ++row)
          mixture_.combine(row, residual_.data() + size_t(row) * HIDDEN_STRIDE);
    }
  }
}

}  // namespace fastgen
