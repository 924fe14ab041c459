#include "kept_rows.h"

#include <algorithm>
#include <span>

namespace kv {
namespace {

using RowSpan = std::span<const int64_t>;

RowSpan rows_between(const std::vector<int64_t>& rows, int64_t begin, int64_t end) {
  return {std::lower_bound(rows.begin(), rows.end(), begin), std::lower_bound(rows.begin(), rows.end(), end)};
}

}  // namespace

KeptRows kept_rows(const std::vector<int64_t>& asked) {
  KeptRows kept{asked, {}};
  std::sort(kept.rows.begin(), kept.rows.end());
  kept.rows.erase(std::unique(kept.rows.begin(), kept.rows.end()), kept.rows.end());
  for (const int64_t row : asked)
    kept.places.push_back(std::lower_bound(kept.rows.begin(), kept.rows.end(), row) - kept.rows.begin());
  return kept;
}

std::shared_ptr<const WorkItems> items_of_rows(const WorkItems& items, const std::vector<int64_t>& rows) {
  auto found = std::make_shared<WorkItems>(items);
  std::erase_if(found->prefill, [&](const PrefillItem& item) {
    return rows_between(rows, item.first_query, item.first_query + item.num_queries).empty();
  });
  for (PrefillItem& item : found->prefill) {
    const RowSpan wanted = rows_between(rows, item.first_query, item.first_query + item.num_queries);
    item.first_query = wanted.front();
    item.num_queries = wanted.back() + 1 - wanted.front();
  }
  return found;
}

}  // namespace kv
