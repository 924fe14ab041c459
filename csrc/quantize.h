// Floats to int8 and to fp8 (e4m3), rounded to nearest even, and the scales that make them fit. Include only from
// *.isa.cpp. What is stored and why: src/kvpager/tiers/quantized.py, which these bytes equal.
//
// Magnitudes are compared as the integers that their bits are: for positive floats the order is the same, and NaN is above
// infinity, which is above all numbers.
#pragma once

#include "store.h"

namespace kv::KV_ISA {
namespace {

constexpr int32_t INFINITY_BITS = 0x7f800000, NAN_BITS = 0x7fc00000, LEAST_EXPONENT = 127 - 64;

template <DType T>
struct Code;  // the largest magnitude is (1 + FRACTION / 2^23) * 2^EXPONENT

template <>
struct Code<DType::i8> {  // 127
  static constexpr int EXPONENT = 6, FRACTION = 0x7e0000;
  static constexpr bool HAS_NAN = false;
};

template <>
struct Code<DType::f8e4m3> {  // 448
  static constexpr int EXPONENT = 8, FRACTION = 0x600000;
  static constexpr bool HAS_NAN = true;
};

inline void store_low_bytes(void* p, vi v) {
#if defined(KV_AVX512)
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(bits<__m512i>(v)));
#else
  const vb low = __builtin_convertvector(v, vb);
  std::memcpy(p, &low, sizeof low);
#endif
}

template <>
struct Storing<DType::i8> {  // REQUIRES: magnitudes are at most 127
  static inline void store(void* p, vf v) { store_low_bytes(p, bits<vi>(v + splat(0x1.8p23f))); }
};

template <>
struct Storing<DType::f8e4m3> {  // REQUIRES: magnitudes are at most 448, or not finite: NaN is stored for these
  static inline void store(void* p, vf v) {
    const vu u = bits<vu>(v), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
    const vu normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
    const vf addend = splat(0x1p14f);  // its last bit is the least e4m3 number, 2^-9
    const vu subnormal = bits<vu>(bits<vf>(magnitude) + addend) - bits<vu>(addend);
    const vu number = bits<vf>(magnitude) < splat(0x1p-6f) ? subnormal : normal;
    const vu is_nan = bits<vu>(magnitude >= static_cast<uint32_t>(INFINITY_BITS));
    store_low_bytes(p, bits<vi>((is_nan & 0x7fu) | (~is_nan & number) | sign));
  }
};

// The larger of `largest` and the magnitudes of `v`, lane by lane; where T can store NaN, what is not finite doesn't count.
template <DType T>
inline vi larger(vi largest, vf v) {
  vi magnitude = bits<vi>(v) & 0x7fffffff;
  if constexpr (Code<T>::HAS_NAN) magnitude &= magnitude < INFINITY_BITS;
  return magnitude > largest ? magnitude : largest;
}

inline int32_t largest_lane(vi v) {
  int32_t largest = v[0];
  for (int i = 1; i < VL; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

// The bits of the least power of two with which `largest` fits, or of NaN.
template <DType T>
inline int32_t needed_scale(int32_t largest) {
  if (largest >= INFINITY_BITS) return NAN_BITS;
  const int32_t exponent = (largest >> 23) - Code<T>::EXPONENT + ((largest & 0x7fffff) > Code<T>::FRACTION);
  return (exponent > LEAST_EXPONENT ? exponent : LEAST_EXPONENT) << 23;
}

}  // namespace
}  // namespace kv::KV_ISA
