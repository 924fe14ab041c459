// SiLU, x / (1 + exp(-x)), with the bits that torch gives, wherever it is inlined. Include only from *.isa.cpp.
#pragma once

#include "store.h"

namespace kv::KV_ISA {
namespace {

inline vf alone(vf product) {  // kept from being contracted with a sum
#if defined(KV_AVX512)
  __asm__("" : "+v"(product));
#endif
  return product;
}

inline vf fma(vf a, vf b, vf c) {
#if defined(KV_AVX512)
  return bits<vf>(_mm512_fmadd_ps(bits<__m512>(a), bits<__m512>(b), bits<__m512>(c)));
#elif defined(KV_X86)
  return bits<vf>(_mm256_fmadd_ps(bits<__m256>(a), bits<__m256>(b), bits<__m256>(c)));
#else
  return a * b + c;
#endif
}

inline vf power_of_two(vi n) { return bits<vf>((n + 127) << 23); }

// exp(x), rounded as torch's: Cody-Waite reduction x = n ln 2 + r and a polynomial for exp(r), with the constants of
// SLEEF's expf (1 ulp).
inline vf exponential(vf x) {
  const vf bounded = x < splat(-104.0f) ? splat(-104.0f) : x > splat(100.0f) ? splat(100.0f) : x;
  const vf scaled = alone(bounded * splat(1.442695040888963407359924681001892137426645954152985934135449406931f));
  const vf shifted = scaled + splat(0x1.8p23f);  // the large addend rounds to a whole number
  const vi n = bits<vi>(shifted) - bits<vi>(splat(0x1.8p23f));
  const vf k = shifted - splat(0x1.8p23f);
  vf r = fma(k, splat(-0.693145751953125f), bounded);
  r = fma(k, splat(-1.428606765330187045e-06f), r);
  vf p = splat(0.000198527617612853646278381f);
  p = fma(p, r, splat(0.00139304355252534151077271f));
  p = fma(p, r, splat(0.00833336077630519866943359f));
  p = fma(p, r, splat(0.0416664853692054748535156f));
  p = fma(p, r, splat(0.166666671633720397949219f));
  p = fma(p, r, splat(0.5f));
  p = splat(1.0f) + fma(r * r, p, r);
  p = p * power_of_two(n >> 1) * power_of_two(n - (n >> 1));  // in two steps: 2^n alone may be too small or too large
  p = x < splat(-104.0f) ? vf{} : p;
  return x > splat(100.0f) ? splat(__builtin_inff()) : p;
}

template <DType T>
inline vf silu(vf x) {
  return rounded_to<T>(x / (splat(1.0f) + exponential(-x)));
}

}  // namespace
}  // namespace kv::KV_ISA
