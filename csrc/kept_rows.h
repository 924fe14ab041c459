// The rows of a pass whose logits are wanted: behind the K and V of the last layer nothing is computed of any other.
#pragma once

#include <memory>
#include <vector>

#include "attention_cut.h"

namespace kv {

struct KeptRows {
  std::vector<int64_t> rows;    // increasing
  std::vector<int64_t> places;  // of each one asked for, in `rows`
};

KeptRows kept_rows(const std::vector<int64_t>& asked);

// The items without prefill that computes none of `rows`; what is left of a prefill item is from the first to the last of
// them. Decode items stay as they are: they are few rows each, and are computed together. Each row is computed as in
// `items`, so that it has the same bits. REQUIRES: rows increase.
std::shared_ptr<const WorkItems> items_of_rows(const WorkItems& items, const std::vector<int64_t>& rows);

}  // namespace kv
