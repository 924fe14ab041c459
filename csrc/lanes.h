// Rows of keys as vectors, and sums over the lanes of vectors: what every q.k product is made of.
// Include only from *.isa.cpp.
#pragma once

#include <utility>

#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr int power_of_two_in(int n) { return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1; }

template <int H, int... I>
inline vf fold(vf a, vf b, std::integer_sequence<int, I...>) {
  const vf kept = __builtin_shufflevector(a, b, (I & H ? VL + I : I)...);
  const vf moved = __builtin_shufflevector(a, b, (I & H ? VL + I - H : I + H)...);
  return kept + moved;
}

template <int H, int N>  // lane i becomes the sum of the lanes of v[i]; the first N vectors count
inline vf sums(vf* v) {
  if constexpr (H == 0) {
    return v[0];
  } else {
    for (int i = 0; i < H && i < N; ++i)
      v[i] = fold<H>(v[i], i + H < N ? v[i + H] : v[i], std::make_integer_sequence<int, VL>());
    return sums<H / 2, (N < H ? N : H)>(v);
  }
}

template <int H, int... I>
inline vf largest(vf v, std::integer_sequence<int, I...> lanes) {  // in every lane
  v = max(v, __builtin_shufflevector(v, v, (I ^ H)...));
  if constexpr (H > 1) return largest<H / 2>(v, lanes);
  return v;
}

// Two vectors of consecutive elements, in the order of `place_of`: bf16 is told apart by the half of a word it lies in,
// which takes half the instructions of widening.
template <DType T>
inline void load_two(const uint8_t* at, vf* to) {
  if constexpr (T == DType::bf16) {
    const vu words = load_as<vu>(at);
    to[0] = bits<vf>(words << 16);
    to[1] = bits<vf>(words & 0xffff0000u);
  } else {
    to[0] = Stored<T>::load(at);
    to[1] = Stored<T>::load(at + VL * sizeof(typename Stored<T>::item));
  }
}

inline void store_two_bf16(uint8_t* to, vf even, vf odd) {  // rounded; what load_two tells apart
  const vu words = __builtin_convertvector(to_bf16(even), vu) | __builtin_convertvector(to_bf16(odd), vu) << 16;
  std::memcpy(to, &words, sizeof words);
}

inline int place_of(DType dtype, int d, int dim) {  // of element d in queries and sums
  const int first = d / (2 * VL) * (2 * VL);
  return dtype != DType::bf16 || first + 2 * VL > dim ? d : first + d % 2 * VL + (d - first) / 2;
}

template <DType T>
inline vf load_part(const uint8_t* at, int count) {  // what lies behind a row may be NaN
  typename Stored<T>::item items[VL] = {};
  std::memcpy(items, at, count * sizeof items[0]);
  return Stored<T>::load(items);
}

}  // namespace
}  // namespace kv::KV_ISA
