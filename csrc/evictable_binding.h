// What the end of a sequence asks of a cache/evictable.py.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "slots.h"

namespace kv {

namespace nb = nanobind;

// One is not kept: it refers to the cache.
class EvictableBinding {
 public:
  explicit EvictableBinding(nb::object type)
      : lru(type, "lru"), index(type, "_index"), retains_(type, "retains"), uses_(type, "uses"), type_(std::move(type)) {}
  // Whether it keeps pages in LRU order, and nobody wants to hear of those that are let go of.
  bool is_plain(nb::handle evictable) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(evictable.ptr())) == type_.ptr() && !lru.of(evictable).is_none() &&
           retains_.of(evictable).is_none() && uses_.of(evictable).is_none();
  }
  Slot lru, index;

 private:
  Slot retains_, uses_;
  nb::object type_;
};

}  // namespace kv
