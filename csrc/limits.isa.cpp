#include "limits.h"

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

}  // namespace

extern const LimitKernels limit_kernels;
const LimitKernels limit_kernels = {read};

}  // namespace kv::KV_ISA
