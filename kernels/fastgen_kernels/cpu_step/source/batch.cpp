#include "batch.h"

#include <algorithm>

#include "team.h"

namespace fastgen {
namespace {

// One after another to each thread's share.
std::vector<Item> dealt(const std::vector<Item>& items, int threads) {
  const Shares shares{int(items.size()), threads};
  std::vector<Item> dealt(items.size());
  for (int i = 0; i < shares.units; ++i) dealt[shares.first(i % threads) + i / threads] = items[i];
  return dealt;
}

}  // namespace

std::vector<Item> attention_items(const Batch& batch, const std::vector<int64_t>& rows,
                                  int threads) {
  std::vector<Item> items;
  int row = 0;
  for (int chunk = 0; chunk < batch.chunks; ++chunk) {
    const int length = int(batch.lengths[chunk]);
    for (int begin = 0; begin < length; begin += ITEM_QUERIES) {
      const int end = std::min(begin + ITEM_QUERIES, length);
      const auto some = std::lower_bound(rows.begin(), rows.end(), row + begin);
      const auto rest = std::lower_bound(some, rows.end(), row + end);
      if (some == rest) continue;
      const int first = int(*some) - row, count = int(rest[-1] - *some) + 1;
      for (int head = 0; head < KV_HEADS; ++head)
        items.push_back({chunk, head, first, count, row + first});
    }
    row += length;
  }
  const auto cost = [&](const Item& item) {
    return (batch.starts[item.chunk] + item.first + item.count) * item.count;
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Item& a, const Item& b) { return cost(a) > cost(b); });
  return dealt(items, threads);
}

}  // namespace fastgen
