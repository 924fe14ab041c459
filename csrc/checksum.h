// The checksum of blocks that leave the device: CRC-64/NVME, 64 bits.
//
// Defined by the NVM Express NVM Command Set Specification (64b CRC of the end-to-end protection information) and listed
// in the CRC RevEng catalogue: polynomial ad93d23594c93659, reflected in and out, initial value and final XOR all ones;
// the check value of "123456789" is ae8b14860a799888. S3 stores know it as CRC64NVME.
//
// Why a CRC: it finds every error burst of up to 64 bits for certain, wherever it lies, and any other error with
// probability 1 - 2^-64; a hash of this length has only the second property. Folding with carry-less multiplication runs
// faster than memory, so that a copy with a checksum costs what a copy costs. And the checksum of two ranges gives that of
// both together (`crc64_joined`), so that threads can share one range and the value never depends on how it was cut.
// It is no defence against someone who changes bytes on purpose.
#pragma once

#include <cstdint>

#include "isa.h"

namespace kv {

// Polynomials modulo the CRC's, reflected: bit 63 - i of a number is the coefficient of x^i.
constexpr uint64_t CRC64_POLYNOMIAL = 0x9a6c9329ac4bc9b5;

constexpr uint64_t crc64_times_x(uint64_t a) { return (a >> 1) ^ (a & 1 ? CRC64_POLYNOMIAL : 0); }

constexpr uint64_t crc64_times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  for (int i = 63; i >= 0; --i) {
    if (b >> i & 1) product ^= a;
    a = crc64_times_x(a);
  }
  return product;
}

constexpr uint64_t crc64_x_to_the(uint64_t n) {
  uint64_t power = 1ull << 63, square = 1ull << 62;
  for (; n; n >>= 1, square = crc64_times(square, square))
    if (n & 1) power = crc64_times(power, square);
  return power;
}

// The checksum of two ranges, one after the other, from theirs.
constexpr uint64_t crc64_joined(uint64_t first, uint64_t second, uint64_t second_bytes) {
  return crc64_times(first, crc64_x_to_the(8 * second_bytes)) ^ second;
}

struct ChecksumKernels {
  // The checksum of a range that follows one with checksum `crc` (0: nothing before it).
  uint64_t (*read)(uint64_t crc, const uint8_t* data, int64_t bytes);
  // The same, while copying past the caches.
  uint64_t (*copy)(uint64_t crc, uint8_t* out, const uint8_t* in, int64_t bytes);
};

KV_DECLARE(ChecksumKernels, checksum_kernels)

}  // namespace kv
