// Weights that will be read next, asked for bit by bit while other work goes on. Include only from *.isa.cpp.
#pragma once

#include "product.h"

namespace kv::KV_ISA {
namespace {

class Fetch {
 public:
  Fetch() = default;
  // All of `next` in `times` calls of some(); nothing where there are none.
  Fetch(NextWeights next, int64_t times)
      : at_(next.from), end_(times ? next.from + next.bytes : next.from),
        at_once_(times ? (next.bytes + times * LINE - 1) / (times * LINE) : 0) {}

  void some() {
    for (int64_t i = 0; i < at_once_ && at_ < end_; ++i, at_ += LINE) __builtin_prefetch(at_, 0, 2);  // to L2
  }

 private:
  static constexpr int64_t LINE = 64;
  const uint8_t *at_ = nullptr, *end_ = nullptr;
  int64_t at_once_ = 0;
};

}  // namespace
}  // namespace kv::KV_ISA
