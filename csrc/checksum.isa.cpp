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

// Two streams of memory are read at once, STREAM bytes each in turn (why: block_copy.isa.cpp). Each has registers of its
// own, which skip what the other reads; at the end those of the first stream, STREAM bytes behind, join the others.
constexpr int LANES = 4;  // independent registers of a stream hide the latency of the multiplication
constexpr int64_t STREAM = 16384;
constexpr int64_t AHEAD = 1024;  // bytes from the load to the line asked for
constexpr int64_t MIN_FOLDED = 256;

template <int64_t BYTES>
KV_CLMUL inline __m128i distance() {  // what a register is multiplied by to move it on by this many bytes
  constexpr auto high = static_cast<int64_t>(crc64_x_to_the(8 * BYTES - 1));
  constexpr auto low = static_cast<int64_t>(crc64_x_to_the(8 * BYTES + 63));
  return _mm_set_epi64x(high, low);
}

KV_CLMUL inline __m128i fold(__m128i a, __m128i by, __m128i onto) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, by, 0x00), _mm_clmulepi64_si128(a, by, 0x11)), onto);
}

// The remainder of `count` registers that follow one another.
KV_CLMUL inline uint64_t remainder_of(const __m128i* registers, int count) {
  __m128i all = registers[0];
  for (int i = 1; i < count; ++i) all = fold(all, distance<16>(), registers[i]);
  uint64_t words[2];
  std::memcpy(words, &all, sizeof words);
  return step8(step8(0, words[0]), words[1]);
}

// `before` is added to the first register.
template <bool COPY>
KV_CLMUL inline void step16(__m128i* lanes, uint8_t* out, const uint8_t* in, __m128i by, __m128i before) {
  __builtin_prefetch(in + AHEAD, 0, 3);
  for (int i = 0; i < LANES; ++i) {
    const __m128i v = load_as<__m128i>(in + 16 * i);
    if constexpr (COPY) _mm_stream_si128(reinterpret_cast<__m128i*>(out) + i, v);
    lanes[i] = fold(lanes[i], by, i == 0 ? _mm_xor_si128(v, before) : v);
  }
}

// REQUIRES: bytes a multiple of 64 and at least that; `out` aligned to 16 if COPY.
template <bool COPY>
KV_CLMUL uint64_t by_folding16(uint64_t remainder, uint8_t* out, const uint8_t* in, int64_t bytes) {
  constexpr int64_t STEP = 16 * LANES;
  const __m128i zero = _mm_setzero_si128();
  const __m128i next = distance<STEP>(), next_turn = distance<STREAM + STEP>();
  __m128i before = _mm_cvtsi64_si128(static_cast<int64_t>(remainder));
  __m128i lanes[LANES] = {}, others[LANES] = {};
  int64_t at = 0;
  for (; at + 2 * STREAM <= bytes; at += STREAM)
    for (const int64_t stop = at + STREAM; at < stop; at += STEP) {
      const __m128i by = at + STREAM == stop ? next_turn : next;
      step16<COPY>(lanes, out + at, in + at, by, before);
      step16<COPY>(others, out + at + STREAM, in + at + STREAM, by, zero);
      before = zero;
    }
  if (at)
    for (int i = 0; i < LANES; ++i) lanes[i] = fold(lanes[i], distance<STREAM>(), others[i]);
  for (; at < bytes; at += STEP, before = zero) step16<COPY>(lanes, out + at, in + at, next, before);
  return remainder_of(lanes, LANES);
}

#if defined(KV_VCLMUL)

KV_VCLMUL inline __m512i fold(__m512i a, __m512i by, __m512i onto) {
  const __m512i low = _mm512_clmulepi64_epi128(a, by, 0x00), high = _mm512_clmulepi64_epi128(a, by, 0x11);
  return _mm512_ternarylogic_epi64(low, high, onto, 0x96);  // exclusive or of the three
}

template <bool COPY>
KV_VCLMUL inline void step64(__m512i* lanes, uint8_t* out, const uint8_t* in, __m512i by, __m512i before) {
  for (int i = 0; i < LANES; ++i) __builtin_prefetch(in + 64 * i + AHEAD, 0, 3);
  for (int i = 0; i < LANES; ++i) {
    const __m512i v = _mm512_loadu_si512(in + 64 * i);
    if constexpr (COPY) _mm512_stream_si512(reinterpret_cast<__m512i*>(out) + i, v);
    lanes[i] = fold(lanes[i], by, i == 0 ? _mm512_xor_si512(v, before) : v);
  }
}

// REQUIRES: bytes a multiple of 256 and at least that; `out` aligned to 64 if COPY.
template <bool COPY>
KV_VCLMUL uint64_t by_folding64(uint64_t remainder, uint8_t* out, const uint8_t* in, int64_t bytes) {
  constexpr int64_t STEP = 64 * LANES;
  const __m512i zero = _mm512_setzero_si512();
  const __m512i next = _mm512_broadcast_i32x4(distance<STEP>());
  const __m512i next_turn = _mm512_broadcast_i32x4(distance<STREAM + STEP>());
  __m512i before = _mm512_zextsi128_si512(_mm_cvtsi64_si128(static_cast<int64_t>(remainder)));
  __m512i lanes[LANES] = {}, others[LANES] = {};
  int64_t at = 0;
  for (; at + 2 * STREAM <= bytes; at += STREAM)
    for (const int64_t stop = at + STREAM; at < stop; at += STEP) {
      const __m512i by = at + STREAM == stop ? next_turn : next;
      step64<COPY>(lanes, out + at, in + at, by, before);
      step64<COPY>(others, out + at + STREAM, in + at + STREAM, by, zero);
      before = zero;
    }
  if (at)
    for (int i = 0; i < LANES; ++i)
      lanes[i] = fold(lanes[i], _mm512_broadcast_i32x4(distance<STREAM>()), others[i]);
  for (; at < bytes; at += STEP, before = zero) step64<COPY>(lanes, out + at, in + at, next, before);
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
