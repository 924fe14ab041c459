// What the end of a sequence does to the order of eviction/lru.py: ranks of its cached pages, and the one that may go.
// How leaves are kept is eviction/ranked_leaves.py's matter; here is its common case, a leaf that goes last.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "items.h"

namespace kv {

// One policy, as long as its pool has the same size.
class LruBinding {
 public:
  LruBinding(nanobind::handle lru, int64_t num_blocks)
      : lru_(nanobind::borrow(lru)),
        offered_(lru.attr("_leaves").attr("_offered")),
        runs_(lru.attr("_leaves").attr("_runs")),
        ends_(lru.attr("_leaves").attr("_ends")),
        ranks_(lru.attr("ranks"), true, num_blocks),
        clock_(lru.attr("clock"), true, 1) {}

  bool is_of(nanobind::handle lru) const { return lru_.is(lru); }

  // Blocks that lie one before the other, `last` of them first, count from now on; the first may go if it `is_leaf`.
  void release(const int32_t* last, int64_t count, bool is_leaf) const {
    const int64_t now = clock_[0];
    for (int64_t i = 0; i < count; ++i) ranks_[last[-i]] = now + i;
    if (is_leaf) offer(*last, now);
    clock_[0] = now + count;
  }

 private:
  void offer(int64_t block, int64_t rank) const {
    const Py_ssize_t num_runs = PyList_GET_SIZE(ends_.ptr());
    const nanobind::object entry = nanobind::int_(rank << BLOCK_BITS | block), number = nanobind::int_(block);
    const int known = PyDict_Contains(offered_.ptr(), number.ptr());
    if (known < 0) nanobind::raise_python_error();
    if (num_runs == 0 || known || PyList_GET_SIZE(PyList_GET_ITEM(runs_.ptr(), num_runs - 1)) >= MAX_RUN ||
        whole_number(PyList_GET_ITEM(ends_.ptr(), num_runs - 1)) >= (rank << BLOCK_BITS | block)) {
      lru_.attr("offer_one")(block);
      return;
    }
    if (PyList_Append(PyList_GET_ITEM(runs_.ptr(), num_runs - 1), entry.ptr()) ||
        PyList_SetItem(ends_.ptr(), num_runs - 1, nanobind::object(entry).release().ptr()) ||
        PyDict_SetItem(offered_.ptr(), number.ptr(), entry.ptr()))
      nanobind::raise_python_error();
  }

  static constexpr int64_t BLOCK_BITS = 32, MAX_RUN = 256;  // as in eviction/ranked_leaves.py
  nanobind::object lru_, offered_, runs_, ends_;
  Items<int64_t> ranks_, clock_;
};

}  // namespace kv
