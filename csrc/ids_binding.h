// Block ids and slots from numpy: int32 or int64 arrays of one dimension, checked against what there is.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kv {

using Ids = nanobind::ndarray<nanobind::ro, nanobind::ndim<1>, nanobind::device::cpu>;

template <class Item>
void check_ids(const char* argument, const Ids& ids, int64_t limit, std::vector<int64_t>& found) {
  const auto* data = static_cast<const char*>(ids.data());
  const int64_t stride = ids.stride(0) * static_cast<int64_t>(sizeof(Item));
  for (size_t i = 0; i < found.size(); ++i) {
    Item item;
    std::memcpy(&item, data + static_cast<int64_t>(i) * stride, sizeof(Item));  // which may lie at an odd address
    const int64_t id = item;
    if (id < 0 || id >= limit)
      throw nanobind::index_error((std::string(argument) + "[" + std::to_string(i) + "] is " + std::to_string(id) +
                                   ", outside 0 to " + std::to_string(limit - 1)).c_str());
    found[i] = id;
  }
}

// The ids as int64. Raises TypeError for another dtype and IndexError for an id outside 0 .. limit - 1, naming `argument`.
inline std::vector<int64_t> read_ids(const char* argument, const Ids& ids, int64_t limit) {
  std::vector<int64_t> found(ids.shape(0));
  if (ids.dtype() == nanobind::dtype<int32_t>())
    check_ids<int32_t>(argument, ids, limit, found);
  else if (ids.dtype() == nanobind::dtype<int64_t>())
    check_ids<int64_t>(argument, ids, limit, found);
  else
    throw nanobind::type_error((std::string(argument) + " must be int32 or int64").c_str());
  return found;
}

}  // namespace kv
