#include "limits.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "vec.h"

namespace kv::KV_ISA {
namespace {

uint64_t read(const uint8_t* data, int64_t bytes) {
  vi sums[4] = {};
  int64_t at = 0;
  for (; at + 4 * KV_VBYTES <= bytes; at += 4 * KV_VBYTES) {
    for (int i = 0; i < 4 * KV_VBYTES; i += 64) __builtin_prefetch(data + at + i + 4096, 0, 2);
    for (int i = 0; i < 4; ++i) sums[i] ^= load_as<vi>(data + at + i * KV_VBYTES);
  }
  const vi all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  uint64_t found = 0;
  for (int i = 0; i < VL; ++i) found ^= static_cast<uint64_t>(static_cast<uint32_t>(all[i])) << (i % 2 * 32);
  for (; at < bytes; ++at) found ^= data[at];
  return found;
}

void stream(uint8_t* target, const uint8_t* source, int64_t bytes) {
  int64_t at = 0;
#if defined(__SSE2__)
  for (; at + 64 <= bytes; at += 64) {  // whole cache lines: narrow stores are joined before they leave
    __builtin_prefetch(source + at + 2048, 0, 2);
    for (int i = 0; i < 64; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + at + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at + i)));
  }
  _mm_sfence();
#endif
  std::memcpy(target + at, source + at, bytes - at);
}

}  // namespace

extern const LimitKernels limit_kernels;
const LimitKernels limit_kernels = {read, stream};

}  // namespace kv::KV_ISA
