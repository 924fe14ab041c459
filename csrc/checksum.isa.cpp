// CRC by folding: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009),
// here with reflected bits. A register holds 128 bits of the message as a polynomial; adding it, times x^distance, to
// the bits `distance` further on leaves the remainder of the whole as it is:
//
//   folded = low * (x^(distance + 63) mod P) + high * (x^(distance - 1) mod P)      (the product of two reflected numbers
//                                                                                  is reflected with one bit to spare)
#include "checksum.h"

#include "stream.h"

#if defined(KV_X86)
#define KV_FOLD 1
#define KV_CLMUL __attribute__((target("pclmul")))
#if defined(KV_AVX512)
#define KV_VCLMUL __attribute__((target("pclmul,vpclmulqdq")))
#endif
#endif

namespace kv::KV_ISA {
namespace {

// -- eight bytes a step, by tables: the beginning, the end, and all of it where nothing else works -----------------

struct Tables {
  uint64_t of[8][256];  // of[n][b]: the remainder of byte b followed by n zero bytes
};

constexpr Tables make_tables() {
  Tables tables{};
  for (int b = 0; b < 256; ++b) {
    uint64_t r = b;
    for (int bit = 0; bit < 8; ++bit) r = crc64_times_x(r);
    tables.of[0][b] = r;
  }
  for (int n = 1; n < 8; ++n)
    for (int b = 0; b < 256; ++b) {
      const uint64_t r = tables.of[n - 1][b];
      tables.of[n][b] = (r >> 8) ^ tables.of[0][r & 255];
    }
  return tables;
}

constexpr Tables TABLES = make_tables();

inline uint64_t step8(uint64_t remainder, uint64_t bytes) {
  const uint64_t r = remainder ^ bytes;
  uint64_t found = 0;
  for (int n = 0; n < 8; ++n) found ^= TABLES.of[7 - n][r >> 8 * n & 255];
  return found;
}

inline uint64_t little_endian(uint64_t x) { return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? __builtin_bswap64(x) : x; }

uint64_t by_tables(uint64_t remainder, const uint8_t* data, int64_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) remainder = step8(remainder, little_endian(load_as<uint64_t>(data)));
  for (; bytes; ++data, --bytes) remainder = (remainder >> 8) ^ TABLES.of[0][(remainder ^ *data) & 255];
  return remainder;
}

// -- by folding ------------------------------------------------------------------------------------------------------

#if defined(KV_FOLD)

constexpr int LANES = 4;                           // independent registers hide the latency of the multiplication
constexpr int64_t AHEAD = 2048;                    // bytes of prefetch: more than the hardware looks ahead at a page's start
constexpr int64_t MIN_FOLDED = 256;

template <int BYTES>
struct Fold {
  static constexpr int64_t LOW = static_cast<int64_t>(crc64_x_to_the(8 * BYTES + 63));
  static constexpr int64_t HIGH = static_cast<int64_t>(crc64_x_to_the(8 * BYTES - 1));
};

template <int BYTES>
KV_CLMUL inline __m128i fold(__m128i a) {
  const __m128i by = _mm_set_epi64x(Fold<BYTES>::HIGH, Fold<BYTES>::LOW);
  return _mm_xor_si128(_mm_clmulepi64_si128(a, by, 0x00), _mm_clmulepi64_si128(a, by, 0x11));
}

// The remainder of `count` registers that follow one another.
KV_CLMUL inline uint64_t remainder_of(const __m128i* registers, int count) {
  __m128i all = registers[0];
  for (int i = 1; i < count; ++i) all = _mm_xor_si128(fold<16>(all), registers[i]);
  uint64_t words[2];
  std::memcpy(words, &all, sizeof words);
  return step8(step8(0, words[0]), words[1]);
}

// REQUIRES: bytes a multiple of 64 and at least that; `out` aligned to 16 if COPY.
template <bool COPY>
KV_CLMUL uint64_t by_folding16(uint64_t remainder, uint8_t* out, const uint8_t* in, int64_t bytes) {
  __m128i lanes[LANES];
  for (int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(in + at + AHEAD, 0, 3);
    for (int i = 0; i < LANES; ++i) {
      __m128i v = load_as<__m128i>(in + at + 16 * i);
      if constexpr (COPY) _mm_stream_si128(reinterpret_cast<__m128i*>(out + at) + i, v);
      if (at == 0)
        lanes[i] = i == 0 ? _mm_xor_si128(v, _mm_cvtsi64_si128(static_cast<int64_t>(remainder))) : v;
      else
        lanes[i] = _mm_xor_si128(fold<64>(lanes[i]), v);
    }
  }
  return remainder_of(lanes, LANES);
}

#if defined(KV_VCLMUL)

template <bool COPY>
KV_VCLMUL uint64_t by_folding64(uint64_t remainder, uint8_t* out, const uint8_t* in, int64_t bytes) {
  const __m512i by = _mm512_broadcast_i32x4(_mm_set_epi64x(Fold<256>::HIGH, Fold<256>::LOW));
  __m512i lanes[LANES];
  for (int64_t at = 0; at < bytes; at += 256) {
    for (int i = 0; i < LANES; ++i) {
      __builtin_prefetch(in + at + 64 * i + AHEAD, 0, 3);
      const __m512i v = _mm512_loadu_si512(in + at + 64 * i);
      if constexpr (COPY) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at) + i, v);
      if (at == 0) {
        const __m512i before = _mm512_zextsi128_si512(_mm_cvtsi64_si128(static_cast<int64_t>(remainder)));
        lanes[i] = i == 0 ? _mm512_xor_si512(v, before) : v;
      } else {
        const __m512i low = _mm512_clmulepi64_epi128(lanes[i], by, 0x00);
        const __m512i high = _mm512_clmulepi64_epi128(lanes[i], by, 0x11);
        lanes[i] = _mm512_ternarylogic_epi64(low, high, v, 0x96);  // exclusive or of the three
      }
    }
  }
  __m128i registers[4 * LANES];
  std::memcpy(registers, lanes, sizeof registers);
  return remainder_of(registers, 4 * LANES);
}

#endif

// 0, 64 or 256: bytes that the best way of folding takes at a time. Every AVX2 processor we know multiplies carry-less,
// but these are instruction sets of their own.
int find_fold_bytes() {
  if (!__builtin_cpu_supports("pclmul")) return 0;
#if defined(KV_VCLMUL)
  if (__builtin_cpu_supports("vpclmulqdq")) return 256;
#endif
  return 64;
}

const int FOLD_BYTES = find_fold_bytes();

#endif

template <bool COPY>
inline uint64_t run(uint64_t crc, uint8_t* out, const uint8_t* in, int64_t bytes) {
  uint64_t remainder = ~crc;
  const auto by_steps = [&](int64_t count) {
    if constexpr (COPY) {
      std::memcpy(out, in, count);
      out += count;
    }
    remainder = by_tables(remainder, in, count);
    in += count;
    bytes -= count;
  };
#if defined(KV_FOLD)
  if (FOLD_BYTES && bytes >= MIN_FOLDED + 64) {
    if (COPY) by_steps(-reinterpret_cast<uintptr_t>(out) % 64);
    const int64_t folded = bytes / FOLD_BYTES * FOLD_BYTES;
#if defined(KV_VCLMUL)
    if (FOLD_BYTES == 256)
      remainder = by_folding64<COPY>(remainder, out, in, folded);
    else
#endif
      remainder = by_folding16<COPY>(remainder, out, in, folded);
    out += COPY ? folded : 0;
    in += folded;
    bytes -= folded;
    if (COPY) stream_fence();
  }
#endif
  by_steps(bytes);
  return ~remainder;
}

uint64_t read(uint64_t crc, const uint8_t* data, int64_t bytes) { return run<false>(crc, nullptr, data, bytes); }

uint64_t copy(uint64_t crc, uint8_t* out, const uint8_t* in, int64_t bytes) { return run<true>(crc, out, in, bytes); }

}  // namespace

extern const ChecksumKernels checksum_kernels;
const ChecksumKernels checksum_kernels = {read, copy};

}  // namespace kv::KV_ISA
