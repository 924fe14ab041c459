// What keeps sums in registers through a loop. Include only from *.isa.cpp.
#pragma once

#include <utility>

#include "vec.h"

namespace kv::KV_ISA {
namespace {

#define INLINED __attribute__((always_inline))

// run<0>() to run<N - 1>(). Sums are in registers only where they are indexed by constants, and no compiler promises to
// unroll a loop before it decides on that.
template <int N, class F>
[[gnu::always_inline]] inline void each(F run) {
  [&]<int... I>(std::integer_sequence<int, I...>) INLINED {
    (run.template operator()<I>(), ...);
  }(std::make_integer_sequence<int, N>());
}

// sum += a * b. In a form that leaves a and b where they are: given the choice, compilers move sums out of registers.
inline void add_product(vf& sum, vf a, vf b) {
#if defined(KV_AVX512)
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#elif defined(KV_X86)
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#else
  sum = a * b + sum;
#endif
}

}  // namespace
}  // namespace kv::KV_ISA
