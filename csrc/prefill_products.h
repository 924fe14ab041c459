// The arithmetic of prefill: matrix products and exponentials, one engine per kind of element. Include only from
// prefill.isa.cpp.
//
// Every product is c[rows, LANES] += a[rows, k] b[k, LANES], where a lane is a query row. One dword holds one float or two
// neighbouring bf16 of k, and k is cut into chunks of 16 dwords (a cache line, the row of an AMX tile):
//
//   a   [chunks][rows][16] dwords      K: rows are keys, k are dims          V: rows are dims, k are keys
//   b   [chunks * 16][LANES] dwords    Q: k are dims                         weights: k are keys
//
// Keys times queries, not queries times keys: the maximum and the sum of a softmax then run along vectors, not across.
#pragma once

#include "registers.h"
#include "store.h"
#if defined(KV_ISA_amx)
#include "tiles.h"
#endif

namespace kv::KV_ISA {
namespace {

constexpr int LANES = 2 * VL;  // query rows of a panel
constexpr int CHUNK = 16;      // dwords
constexpr int KEYS = 64;       // keys of a tile: what one pass of softmax handles

// R rows by two vectors, whose sums are in registers.
template <int R, class Dot>
[[gnu::always_inline]] inline void multiply_block(const uint32_t* a, const uint32_t* b, float* c, int rows, int chunks,
                                                  bool add, Dot dot) {
  vf sums[R][2] = {};
  if (add)
    each<R>([&]<int i>() INLINED {
      sums[i][0] = load_as<vf>(c + i * LANES);
      sums[i][1] = load_as<vf>(c + i * LANES + VL);
    });
  for (int chunk = 0; chunk < chunks; ++chunk, a += rows * CHUNK) {
    for (int k = 0; k < CHUNK; ++k, b += LANES) {
      const vu first = load_as<vu>(b), second = load_as<vu>(b + VL);
      each<R>([&]<int i>() INLINED {
        const vu one = vu{} + a[i * CHUNK + k];
        dot(sums[i][0], one, first);
        dot(sums[i][1], one, second);
      });
    }
  }
  each<R>([&]<int i>() INLINED {
    std::memcpy(c + i * LANES, &sums[i][0], sizeof(vf));
    std::memcpy(c + i * LANES + VL, &sums[i][1], sizeof(vf));
  });
}

// Blocks of as many rows as registers hold the sums of: more than hide the latency of a product. `rows` is even.
template <class Dot>
inline void multiply_vectors(const uint32_t* a, const uint32_t* b, float* c, int rows, int chunks, bool add, Dot dot) {
  constexpr int MOST = VL == 16 ? 8 : 6;
  int row = 0;
  const auto blocks = [&]<int R>() INLINED {
    for (; row + R <= rows; row += R) multiply_block<R>(a + row * CHUNK, b, c + row * LANES, rows, chunks, add, dot);
  };
  blocks.template operator()<MOST>();
  blocks.template operator()<4>();
  blocks.template operator()<2>();
}

// 2^x, relative error below 2e-7; 0 below -126.5, NaN for NaN. Minimax polynomial of 2^r for r in [-1/2, 1/2].
inline vf exp2_exact(vf x) {
  const vf least = splat(-127.0f), bounded = least > x ? least : x;  // of NaN, x
  const vf shifted = bounded + splat(0x1.8p23f);  // round to nearest by a large addend: its last bits are that number
  const vf r = bounded - (shifted - splat(0x1.8p23f));
  vf p = splat(1.53458120e-4f);
  p = p * r + splat(1.33999312e-3f);
  p = p * r + splat(9.61848896e-3f);
  p = p * r + splat(5.55032878e-2f);
  p = p * r + splat(2.40226469e-1f);
  p = p * r + splat(6.93147206e-1f);
  p = p * r + splat(1.0f);
  return p * bits<vf>((bits<vi>(shifted) + 127) << 23);  // the exponent of -127 is that of 0
}

struct F32 {
  using item = float;
  static constexpr DType dtype = DType::f32;
  static constexpr int PER_DWORD = 1;

  static inline vf exp2(vf x) { return exp2_exact(x); }
  static inline vu pack(const vf* weights) { return bits<vu>(weights[0]); }
  static inline item round(float x) { return x; }

  template <class Background>
  static void multiply(const uint32_t* a, const uint32_t* b, float* c, int rows, int chunks, bool add, Background) {
    multiply_vectors(a, b, c, rows, chunks, add, [](vf& sum, vu x, vu y) INLINED {
      add_product(sum, bits<vf>(x), bits<vf>(y));
    });
  }
  static void begin() {}
  static void end() {}
};

#if defined(KV_BF16_DOT)
struct Bf16 {
  using item = uint16_t;
  static constexpr DType dtype = DType::bf16;
  static constexpr int PER_DWORD = 2;

  static inline vf exp2(vf x) { return exp2_for_bf16(x); }
  static inline vu pack(const vf* weights) { return bf16_pairs(weights[0], weights[1]); }  // of two keys
  static inline item round(float x) { return to_bf16(x); }

  template <class Background>
  static void multiply(const uint32_t* a, const uint32_t* b, float* c, int rows, int chunks, bool add, Background) {
    multiply_vectors(a, b, c, rows, chunks, add, [](vf& sum, vu x, vu y) INLINED {
      sum = (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
    });
  }
  static void begin() {}
  static void end() {}
};
#endif

#if defined(KV_ISA_amx)
struct Tiles : Bf16 {
  // Blocks of 2 x 2 tiles. `background` is vector work to do meanwhile: the matrix unit takes 64 cycles for the four
  // products, the instructions that start them only a few.
  template <class Background>
  static void multiply(const uint32_t* a, const uint32_t* b, float* c, int rows, int chunks, bool add,
                       Background background) {
    constexpr int TILE = 16 * CHUNK;  // dwords
    __asm__ volatile("" ::: "memory");  // the tile loads do not tell the compiler that they read memory
    for (int row = 0; row < rows; row += 32, c += 32 * LANES) {
      if (add) {
        _tile_loadd(0, c, LANES * 4);
        _tile_loadd(1, c + 16, LANES * 4);
        _tile_loadd(2, c + 16 * LANES, LANES * 4);
        _tile_loadd(3, c + 16 * LANES + 16, LANES * 4);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const uint32_t* left = a + (chunk * rows + row) * CHUNK;
        const uint32_t* right = b + chunk * CHUNK * LANES;
        _tile_loadd(6, right, LANES * 4);
        _tile_stream_loadd(4, left, CHUNK * 4);  // K and V pass by: they would push what is stored to out of L1
        _tile_loadd(7, right + 16, LANES * 4);
        _tile_stream_loadd(5, left + TILE, CHUNK * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        background();
      }
      _tile_stored(0, c, LANES * 4);
      _tile_stored(1, c + 16, LANES * 4);
      _tile_stored(2, c + 16 * LANES, LANES * 4);
      _tile_stored(3, c + 16 * LANES + 16, LANES * 4);
    }
  }
  static void begin() { begin_tiles(); }
  static void end() { end_tiles(); }
};
#endif

}  // namespace
}  // namespace kv::KV_ISA
