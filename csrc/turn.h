// Squares of dwords, rows turned into columns. Include only from *.isa.cpp.
#pragma once

#include <utility>

#include "registers.h"
#include "vec.h"

namespace kv::KV_ISA {
namespace {

// VL x VL dwords: to[i] is dword i of each of the rows `at`.
#if KV_VBYTES == 32
[[gnu::always_inline]] inline void load_turned(const uint8_t* const (&at)[VL], int64_t offset, vu (&to)[VL]) {
  typedef uint32_t vq __attribute__((vector_size(16)));
  each<2>([&]<int half>() INLINED {  // halves of two rows in one vector, then within the halves
    vu pairs[4], next[4];
    each<4>([&]<int i>() INLINED {
      const vq low = load_as<vq>(at[i] + offset + half * 16), high = load_as<vq>(at[i + 4] + offset + half * 16);
      pairs[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    });
    each<2>([&]<int i>() INLINED {
      next[2 * i] = __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
      next[2 * i + 1] = __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    });
    each<2>([&]<int i>() INLINED {
      to[4 * half + 2 * i] = __builtin_shufflevector(next[i], next[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      to[4 * half + 2 * i + 1] = __builtin_shufflevector(next[i], next[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    });
  });
}
#else
template <int FIRST, int... I>  // lane 2i is lane FIRST + i of a, lane 2i + 1 that of b
inline vu zipped(vu a, vu b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (FIRST + I / 2 + I % 2 * VL)...);
}

[[gnu::always_inline]] inline void turn(vu (&to)[VL]) {
  constexpr std::make_integer_sequence<int, VL> lanes;
  for (int round = 1; round < VL; round *= 2) {  // log2(VL) times the perfect shuffle of the first rows with the others
    vu next[VL];
    each<VL / 2>([&]<int i>() INLINED {
      next[2 * i] = zipped<0>(to[i], to[i + VL / 2], lanes);
      next[2 * i + 1] = zipped<VL / 2>(to[i], to[i + VL / 2], lanes);
    });
    each<VL>([&]<int i>() INLINED { to[i] = next[i]; });
  }
}

[[gnu::always_inline]] inline void load_turned(const uint8_t* const (&at)[VL], int64_t offset, vu (&to)[VL]) {
  each<VL>([&]<int i>() INLINED { to[i] = load_as<vu>(at[i] + offset); });
  turn(to);
}
#endif

}  // namespace
}  // namespace kv::KV_ISA
