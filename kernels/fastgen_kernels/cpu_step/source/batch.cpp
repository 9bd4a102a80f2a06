#include "batch.h"

#include <algorithm>

namespace fastgen {

std::vector<Item> attention_items(const Batch& batch) {
  std::vector<Item> items;
  int row = 0;
  for (int chunk = 0; chunk < batch.chunks; ++chunk) {
    const int length = int(batch.lengths[chunk]);
    for (int first = 0; first < length; first += ITEM_QUERIES)
      for (int head = 0; head < KV_HEADS; ++head)
        items.push_back({chunk, head, first, std::min(ITEM_QUERIES, length - first), row + first});
    row += length;
  }
  const auto cost = [&](const Item& item) {
    return (batch.starts[item.chunk] + item.first + item.count) * item.count;
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Item& a, const Item& b) { return cost(a) < cost(b); });
  return items;
}

}  // namespace fastgen
