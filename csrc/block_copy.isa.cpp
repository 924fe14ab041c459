#include "block_copy.h"

#include "stream.h"

namespace kv::KV_ISA {
namespace {

constexpr int64_t AHEAD = 2048;  // bytes from the load to the line asked for
constexpr int64_t STEP = 4 * KV_VBYTES;

void stream(uint8_t* out, const uint8_t* in, int64_t bytes, const uint8_t* next) {
  int64_t at = -reinterpret_cast<uintptr_t>(out) % KV_VBYTES;
  if (at > bytes) at = bytes;
  std::memcpy(out, in, at);
  for (; at + STEP <= bytes; at += STEP) {
    const int64_t ahead = at + AHEAD;
    const uint8_t* wanted = ahead < bytes ? in + ahead : next + (ahead - bytes);
    for (int i = 0; i < STEP; i += 64) __builtin_prefetch(wanted + i, 0, 3);
    vi v[4];
    for (int i = 0; i < 4; ++i) v[i] = load_as<vi>(in + at + i * KV_VBYTES);
    for (int i = 0; i < 4; ++i) kv::KV_ISA::stream(out + at + i * KV_VBYTES, v[i]);
  }
  std::memcpy(out + at, in + at, bytes - at);
  stream_fence();
}

}  // namespace

extern const BlockCopyKernels block_copy_kernels;
const BlockCopyKernels block_copy_kernels = {stream};

}  // namespace kv::KV_ISA
