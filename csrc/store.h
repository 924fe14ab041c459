// Floats to every stored float type, rounded to nearest even, and rows whose length is no multiple of a vector.
// Include only from *.isa.cpp.
#pragma once

#include "vec.h"

namespace kv::KV_ISA {
namespace {

template <DType T>
struct Storing;  // store(p, v): VL consecutive elements

template <>
struct Storing<DType::f32> {
  static inline void store(void* p, vf v) { std::memcpy(p, &v, sizeof v); }
};

template <>
struct Storing<DType::bf16> {
  static inline void store(void* p, vf v) {
    const vh h = to_bf16(v);
    std::memcpy(p, &h, sizeof h);
  }
};

template <>
struct Storing<DType::f16> {
  static inline void store(void* p, vf v) {
#if defined(KV_AVX512)
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(bits<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(KV_X86)
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(bits<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
    vh h;
    for (int i = 0; i < VL; ++i) h[i] = to_f16(v[i]);
    std::memcpy(p, &h, sizeof h);
#endif
  }
};

template <DType T>
inline vf rounded_to(vf v) {  // the nearest numbers that T has
  if constexpr (T == DType::f32) {
    return v;
  } else if constexpr (T == DType::bf16) {  // without leaving the registers' width
    const vu u = bits<vu>(v);
    const vf nearest = bits<vf>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
    return v == v ? nearest : v;
  } else {
    vh h;
    Storing<T>::store(&h, v);
    return Stored<T>::load(&h);
  }
}

// The first n < VL elements; the others are zero, and memory behind the n is neither read nor written.
template <DType T>
inline vf load_part(const void* p, int n) {
  typename Stored<T>::item items[VL] = {};
  std::memcpy(items, p, n * sizeof items[0]);
  return Stored<T>::load(items);
}

template <DType T>
inline void store_part(void* p, vf v, int n) {
  typename Stored<T>::item items[VL];
  Storing<T>::store(items, v);
  std::memcpy(p, items, n * sizeof items[0]);
}

#if defined(KV_BF16_DOT)
// 2^x, relative error below 8e-5, less than bf16 keeps. Minimax polynomial of 2^r for r in [0, 1).
inline vf exp2_for_bf16(vf x) {
  const __m512 r = _mm512_reduce_ps((__m512)x, 1);  // x - floor(x); 0 for infinity
  __m512 p = _mm512_set1_ps(0.07802452f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.22606716f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69583354f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.99992522f));
  return (vf)_mm512_scalef_ps(p, (__m512)x);  // p * 2^floor(x)
}

inline vf exp_for_bf16(vf x) { return exp2_for_bf16(x * splat(1.44269504088896341f)); }

// Dwords of two bf16 each, rounded: `low` in the lower halves.
inline vu bf16_pairs(vf low, vf high) {
  alignas(64) static constexpr uint16_t ZIP[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (vu)_mm512_permutexvar_epi16(_mm512_load_si512(ZIP), halves);
}
#endif

}  // namespace
}  // namespace kv::KV_ISA
