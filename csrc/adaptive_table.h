// What the adaptive policy finds by content key: an open-addressing table of fixed size. It never grows, so no call ever
// pays for a rehash.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace kv::adaptive {

constexpr int32_t NOWHERE = -1;

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): the hash, and with a counter the random
// numbers of the policy.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class KeyTable {
 public:
  explicit KeyTable(int64_t limit)
      : mask_(std::bit_ceil(static_cast<uint64_t>(2 * limit + 2)) - 1), slots_(mask_ + 1) {}

  // For batches: asks for the memory that a `find` will need.
  void prefetch(uint64_t key) const { __builtin_prefetch(&slots_[mix(key) & mask_]); }

  int32_t find(uint64_t key) const { return slots_[slot_of(key)].value; }

  // REQUIRES: fewer than `limit` other keys are in it.
  void set(uint64_t key, int32_t value) {
    slots_[slot_of(key)] = {key, value};
  }

  void erase(uint64_t key) {
    uint64_t hole = slot_of(key);
    if (slots_[hole].value == NOWHERE) return;
    for (uint64_t at = (hole + 1) & mask_; slots_[at].value != NOWHERE; at = (at + 1) & mask_) {
      const uint64_t home = mix(slots_[at].key) & mask_;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;  // its home lies behind the hole
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].value = NOWHERE;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t value = NOWHERE;
  };

  uint64_t slot_of(uint64_t key) const {
    uint64_t slot = mix(key) & mask_;
    while (slots_[slot].value != NOWHERE && slots_[slot].key != key) slot = (slot + 1) & mask_;
    return slot;
  }

  uint64_t mask_;
  std::vector<Slot> slots_;
};

}  // namespace kv::adaptive
