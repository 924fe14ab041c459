// Copies that go past the caches: data that nobody reads soon is written without reading its old cache lines first.
// Include only from *.isa.cpp.
#pragma once

#include "vec.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kv::KV_ISA {
namespace {

// REQUIRES: `at` is aligned to KV_VBYTES.
inline void stream(void* at, vi v) {
#if defined(KV_AVX512)
  _mm512_stream_si512(static_cast<__m512i*>(at), bits<__m512i>(v));
#elif defined(KV_X86)
  _mm256_stream_si256(static_cast<__m256i*>(at), bits<__m256i>(v));
#elif defined(__SSE2__)
  _mm_stream_si128(static_cast<__m128i*>(at), bits<__m128i>(v));
#else
  std::memcpy(at, &v, sizeof v);
#endif
}

// Makes streamed stores visible before whatever this thread does next. Once per piece of work.
inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

inline bool is_aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % KV_VBYTES == 0; }

}  // namespace
}  // namespace kv::KV_ISA
