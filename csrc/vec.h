// Vectors of one instruction set (GCC vector extensions): VL floats each, and conversions from every stored type.
// Include only from *.isa.cpp. Everything is in an unnamed namespace: no symbol of one set may reach another's objects.
#pragma once

#include <cstdint>
#include <cstring>

#include "dtype.h"

#if defined(KV_ISA_avx2) || defined(KV_ISA_avx512) || defined(KV_ISA_avx512_bf16) || defined(KV_ISA_amx)
#include <immintrin.h>
#define KV_X86 1
#endif
#if defined(KV_ISA_avx512) || defined(KV_ISA_avx512_bf16) || defined(KV_ISA_amx)
#define KV_AVX512 1
#define KV_VBYTES 64
#elif defined(KV_ISA_avx2)
#define KV_VBYTES 32
#else
#define KV_VBYTES 16
#endif
#if defined(KV_ISA_avx512_bf16) || defined(KV_ISA_amx)
#define KV_BF16_DOT 1
#endif

namespace kv::KV_ISA {
namespace {

constexpr int VL = KV_VBYTES / 4;
typedef float vf __attribute__((vector_size(KV_VBYTES)));
typedef int32_t vi __attribute__((vector_size(KV_VBYTES)));
typedef uint32_t vu __attribute__((vector_size(KV_VBYTES)));
typedef uint16_t vh __attribute__((vector_size(KV_VBYTES / 2)));
typedef int8_t vb __attribute__((vector_size(VL)));

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class V>
inline V load_as(const void* at) {
  V v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

inline vf splat(float x) { return x - vf{}; }  // minus: x + 0 is not x for -0, so the addition would stay

// -- stored types to float ---------------------------------------------------------------------------------------

inline vf half_to_float(vh h) {
#if defined(KV_AVX512)
  return bits<vf>(_mm512_cvtph_ps(bits<__m256i>(h)));
#elif defined(KV_X86)
  return bits<vf>(_mm256_cvtph_ps(bits<__m128i>(h)));
#else
  const vu u = __builtin_convertvector(h, vu);
  const vu sign = (u & 0x8000u) << 16, rest = u & 0x7fffu;
  // Shifted into place, a half's exponent is 112 too small: a multiplication corrects it, subnormal numbers included.
  const vf scaled = bits<vf>(rest << 13) * splat(0x1p112f);
  const vu special = bits<vu>(rest >= 0x7c00u) & 0x7f800000u;  // infinity and NaN
  return bits<vf>(bits<vu>(scaled) | special | sign);
#endif
}

template <DType T>
struct Stored;  // load(p): VL consecutive elements as floats; load_one(p)

template <>
struct Stored<DType::f32> {
  using item = float;
  static inline vf load(const void* p) { return load_as<vf>(p); }
};

template <>
struct Stored<DType::bf16> {
  using item = uint16_t;
  static inline vf load(const void* p) {
#if defined(KV_AVX512)
    return bits<vf>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
#else
    return bits<vf>(__builtin_convertvector(load_as<vh>(p), vu) << 16);
#endif
  }
};

template <>
struct Stored<DType::f16> {
  using item = uint16_t;
  static inline vf load(const void* p) { return half_to_float(load_as<vh>(p)); }
};

template <>
struct Stored<DType::i8> {
  using item = int8_t;
  static inline vf load(const void* p) {
#if defined(KV_AVX512)
    return bits<vf>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))));
#else
    return __builtin_convertvector(__builtin_convertvector(load_as<vb>(p), vi), vf);
#endif
  }
};

template <>
struct Stored<DType::f8e4m3> {  // OCP FP8 E4M3: sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN
  using item = uint8_t;
  static inline vf load(const void* p) {
#if defined(KV_AVX512)
    const vi u = bits<vi>(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#else
    const vi u = __builtin_convertvector(load_as<vb>(p), vi);
#endif
    const vi size = u & 0x7f;
    // Shifted into place alone, subnormal numbers would be subnormal floats, which cost a hundred cycles in a product.
    const vf subnormal = __builtin_convertvector(size, vf) * splat(0x1p-9f), normal = bits<vf>((size << 20) + (120 << 23));
    const vf magnitude = size < 8 ? subnormal : normal;
    const vi nan = (size == 0x7f) & 0x7fc00000;
    return bits<vf>(bits<vi>(magnitude) | nan | (u & (vi{} + INT32_MIN)));
  }
};

// -- float to bf16 and fp16, rounded to nearest even ---------------------------------------------------------------

inline uint16_t to_bf16(float x) {
  const uint32_t u = bits<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

inline uint16_t to_f16(float x) {
#if defined(KV_X86)
  return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
  const uint32_t u = bits<uint32_t>(x), magnitude = u & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);  // NaN stays NaN, quiet
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // rounds to more than the largest half
  } else if (magnitude < 0x38800000u) {
    half = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000u;  // subnormal: one unit is the last bit of 0.5f
  } else {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(half | (u >> 16 & 0x8000u));
#endif
}

inline float from_bf16(uint16_t x) { return bits<float>(static_cast<uint32_t>(x) << 16); }

inline float from_f16(uint16_t x) {
#if defined(KV_X86)
  return _cvtsh_ss(x);
#else
  const uint32_t rest = x & 0x7fffu, special = rest > 0x7c00u ? 0x7fc00000u : rest == 0x7c00u ? 0x7f800000u : 0u;
  const float scaled = bits<float>(rest << 13) * 0x1p112f;
  return bits<float>(bits<uint32_t>(scaled) | special | (x & 0x8000u) << 16);
#endif
}

inline vh to_bf16(vf x) {
  const vu u = bits<vu>(x);
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const vu nan = bits<vu>((u & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((nan & ((u >> 16) | 0x40u)) | (~nan & rounded), vh);
}

// -- arithmetic -----------------------------------------------------------------------------------------------------

inline float sum(vf v) {  // a fixed tree, so that the order never depends on anything
  float lanes[VL];
  std::memcpy(lanes, &v, sizeof v);
  for (int half = VL / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline vf max(vf a, vf b) { return a > b ? a : b; }

// exp(x) for x <= 0 (a softmax subtracts the maximum first), relative error below 2e-7; 0 for -infinity and below -87.3.
// Cody-Waite reduction x = n ln 2 + r, then a minimax polynomial of degree 6 for exp(r) on [-ln 2 / 2, ln 2 / 2]
// (coefficients of Cephes' expf).
inline vf exp_negative(vf x) {
  const vi keep = x > splat(-87.3f);
  const vf bounded = keep ? x : splat(-87.3f);
  const vf shifted = bounded * splat(1.44269504088896341f) + splat(0x1.8p23f);  // round to nearest by a large addend
  const vi n = bits<vi>(shifted) - bits<vi>(splat(0x1.8p23f));
  const vf k = shifted - splat(0x1.8p23f);
  const vf r = (bounded - k * splat(0.693359375f)) - k * splat(-2.12194440e-4f);
  vf p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  return keep ? bits<vf>(bits<vi>(p) + (n << 23)) : vf{};
}

// tanh(x): a truncated series near 0, (1 - e) / (1 + e) with e = exp(-2 |x|) elsewhere; relative error below 1e-6.
inline vf tanh(vf x) {
  const vf size = bits<vf>(bits<vi>(x) & 0x7fffffff), square = x * x;
  const vf e = exp_negative(splat(-2.0f) * size);
  const vf far = bits<vf>(bits<vi>((splat(1.0f) - e) / (splat(1.0f) + e)) | (bits<vi>(x) & (vi{} + INT32_MIN)));
  vf p = splat(62.0f / 2835) * square - splat(17.0f / 315);
  p = p * square + splat(2.0f / 15);
  p = p * square - splat(1.0f / 3);
  const vf near = x + x * square * p;
  return size < splat(0.25f) ? near : x == x ? far : x;
}

}  // namespace
}  // namespace kv::KV_ISA
