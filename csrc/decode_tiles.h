// The products of a decode kernel on matrix tiles (AMX): queries and cached rows of bf16, as decode_products.h has them on
// vectors. Include only from decode.isa.cpp.
//
//   scores   keys [16][32 dims] as they lie, times queries [16 pairs of dims][rows]      [16 keys][rows], turned back
//   sums     weights [rows][16 keys] times values [16][32 dims] as they lie              [rows][16 dims]
//
// A dword of a value's row is an even and an odd dim of one key; a weight, rounded to bf16, is a dword whose other half is
// zero, and takes one of the two. So sums are multiplied twice, and no key or value is ever moved for it, unless slots of 16
// neighbours do not follow one another. What a row gets depends on its own query and the tile of keys alone, whatever the
// rows beside it, and however many.
#pragma once

#include "decode_products.h"
#if defined(KV_ISA_amx)
#include "store.h"
#include "tiles.h"
#include "turn.h"
#endif

namespace kv::KV_ISA {
namespace {

#if defined(KV_ISA_amx)

constexpr int SIDE = 16, CHUNK = 32;  // of a tile: rows, and items of bf16
constexpr int TILE_ROWS = SIDE;       // queries that are multiplied at once
constexpr int64_t LINE_BYTES = 64;
constexpr int FEW = 4;                // rows up to which tiles are narrow
constexpr int MOST_DIMS = 256;

inline bool fits_tiles(const AttentionCall& call) {
  return call.q.dtype == DType::bf16 && call.cache.dtype == DType::bf16 && call.cache.head_dim % CHUNK == 0 &&
         call.cache.head_dim <= MOST_DIMS;
}

// The tiles. Those with a number of rows of the share in their shape are narrow or low where rows are few.
constexpr int QUERIES = 0, SUMS = 1, CACHED = 3, WEIGHTS = 4, WEIGHED = 6;  // SUMS, WEIGHTS, WEIGHED: two of each

inline void begin_decode_tiles(int rows) {  // up to FEW, or TILE_ROWS
  rows = rows <= FEW ? FEW : TILE_ROWS;
  TileConfig config;
  for (const int tile : {QUERIES, SUMS, SUMS + 1}) config.row_bytes[tile] = rows * 4;
  for (const int tile : {WEIGHTS, WEIGHTS + 1, WEIGHED, WEIGHED + 1}) config.rows[tile] = rows;
  begin_tiles(config);
}

struct Lines {  // groups of 16 keys or values: where the first of each lies, and how far apart they are
  const uint8_t* at[TILE / SIDE];
  int64_t apart[TILE / SIDE];
};

inline bool follow_one_another(const int64_t* row, int64_t stride) {
  const __m512i steps = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(stride));
  const __m512i first = _mm512_add_epi64(_mm512_set1_epi64(row[0]), steps);
  const __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(8 * stride));
  return !(_mm512_cmpneq_epi64_mask(first, _mm512_loadu_si512(row)) |
           _mm512_cmpneq_epi64_mask(second, _mm512_loadu_si512(row + 8)));
}

// Groups whose rows do not follow one another are copied; behind the last row come zeros: what lies there may be NaN.
inline Lines lines_of(const uint8_t* base, const Tile& tile, int64_t stride, int64_t row_bytes, uint8_t* copies) {
  Lines lines;
  for (int i = 0; i < tile.count; i += SIDE, copies += SIDE * row_bytes) {
    const int count = tile.count - i < SIDE ? tile.count - i : SIDE;
    if (count == SIDE && follow_one_another(tile.row + i, stride)) {
      lines.at[i / SIDE] = base + tile.row[i];
      lines.apart[i / SIDE] = stride;
      continue;
    }
    for (int k = 0; k < SIDE; ++k)
      if (k < count) std::memcpy(copies + k * row_bytes, base + tile.row[i + k], row_bytes);
      else std::memset(copies + k * row_bytes, 0, row_bytes);
    lines.at[i / SIDE] = copies;
    lines.apart[i / SIDE] = row_bytes;
  }
  return lines;
}

// to[r]: dword r of each of 16 lines of FEW.
inline void turn_few(const float* lines, vf (&to)[FEW]) {
  vf line[4], half[4];
  each<4>([&]<int i>() INLINED { line[i] = load_as<vf>(lines + i * VL); });
  each<2>([&]<int i>() INLINED {  // rows 0 and 1, or 2 and 3, of keys 0 to 7, and of keys 8 to 15
    each<2>([&]<int which>() INLINED {
      half[2 * i + which] = __builtin_shufflevector(
          line[2 * i], line[2 * i + 1], 2 * which, 4 + 2 * which, 8 + 2 * which, 12 + 2 * which, 16 + 2 * which,
          20 + 2 * which, 24 + 2 * which, 28 + 2 * which, 1 + 2 * which, 5 + 2 * which, 9 + 2 * which, 13 + 2 * which,
          17 + 2 * which, 21 + 2 * which, 25 + 2 * which, 29 + 2 * which);
    });
  });
  each<2>([&]<int which>() INLINED {
    to[2 * which] = __builtin_shufflevector(half[which], half[2 + which], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    to[2 * which + 1] = __builtin_shufflevector(half[which], half[2 + which], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28,
                                                29, 30, 31);
  });
}

// -- scores -----------------------------------------------------------------------------------------------------------

// Queries of all rows of a share, one KV head: [pairs of dims][rows rounded up to 16] dwords. 16 more may be read behind.
inline int64_t line_dwords(int64_t rows) { return (rows + SIDE - 1) / SIDE * SIDE; }
inline int64_t query_floats(int64_t rows, int dim) { return line_dwords(rows) * (dim / 2); }

inline void turn_queries(const uint8_t* const* at, int64_t offset, int64_t rows, int dim, float* to) {
  const int64_t apart = line_dwords(rows);
  for (int64_t first = 0; first < rows; first += SIDE)
    for (int pair = 0; pair < dim / 2; pair += SIDE) {
      vu turned[SIDE];
      each<SIDE>([&]<int i>() INLINED {
        turned[i] = first + i < rows ? load_as<vu>(at[first + i] + offset + pair * 4) : vu{};
      });
      turn(turned);
      each<SIDE>([&]<int i>() INLINED { std::memcpy(to + (pair + i) * apart + first, &turned[i], sizeof(vu)); });
    }
}

// scores[r * TILE + key] of up to COLUMNS rows.
template <int COLUMNS>
[[gnu::noinline]] void score_tiles(const Lines& keys, const Tile& tile, int dim, const float* queries,
                                   int64_t line, int rows, float* scores, Ahead ahead) {
  alignas(64) float sums[2 * SIDE * COLUMNS];
  for (int i = 0; i < tile.count; i += 2 * SIDE) {
    const bool are_two = i + SIDE < tile.count;
    clear_tile<SUMS>();
    clear_tile<SUMS + 1>();
    for (int d = 0; d < dim; d += CHUNK) {
      load_tile<QUERIES>(queries + d / 2 * line, line * 4);
      load_tile<CACHED>(keys.at[i / SIDE] + d * 2, keys.apart[i / SIDE]);
      add_tiles<SUMS, CACHED, QUERIES>();
      if (are_two) {
        load_tile<CACHED>(keys.at[i / SIDE + 1] + d * 2, keys.apart[i / SIDE + 1]);
        add_tiles<SUMS + 1, CACHED, QUERIES>();
      }
      if (!d)
        for (int k = i; k < i + 2 * SIDE; ++k) ahead.fetch(k);
    }
    store_tile<SUMS>(sums, COLUMNS * 4);
    if (are_two) store_tile<SUMS + 1>(sums + SIDE * COLUMNS, COLUMNS * 4);
    for (int g = 0; g <= are_two; ++g) {
      float* const to = scores + i + g * SIDE;
      if constexpr (COLUMNS == FEW) {
        vf turned[FEW];
        turn_few(sums + g * SIDE * FEW, turned);
        for (int r = 0; r < rows; ++r) std::memcpy(to + r * TILE, &turned[r], sizeof(vf));
      } else {
        vu turned[SIDE];
        std::memcpy(turned, sums + g * SIDE * SIDE, sizeof turned);
        turn(turned);
        each<SIDE>([&]<int r>() INLINED { std::memcpy(to + r * TILE, &turned[r], sizeof(vf)); });
      }
    }
  }
}

// -- sums -------------------------------------------------------------------------------------------------------------

struct TileWeights {  // [rows][TILE] dwords: a weight for even dims, and for odd ones
  uint32_t *even, *odd;
};

// Weights of 16 keys of a row; returns them rounded.
inline vf put_weights(vf weights, TileWeights to, int64_t at) {
  const vu even = (vu)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)weights)), odd = even << 16;
  std::memcpy(to.even + at, &even, sizeof even);
  std::memcpy(to.odd + at, &odd, sizeof odd);
  return bits<vf>(odd);
}

// Sums of the states = sums * shrink + weights times values, of up to COLUMNS rows.
template <int COLUMNS>
[[gnu::noinline]] void weigh_tiles(const Lines& values, const Tile& tile, const Shape& shape, TileWeights weights,
                                   int rows, const vf* shrink, float* states, Ahead ahead) {
  alignas(64) float sums[2 * SIDE * COLUMNS];
  for (int d = 0; d < shape.dim; d += CHUNK) {
    clear_tile<WEIGHED>();
    clear_tile<WEIGHED + 1>();
    for (int i = 0; i < tile.count; i += SIDE) {
      load_tile<CACHED>(values.at[i / SIDE] + d * 2, values.apart[i / SIDE]);
      load_tile<WEIGHTS>(weights.even + i, TILE * 4);
      add_tiles<WEIGHED, WEIGHTS, CACHED>();
      load_tile<WEIGHTS + 1>(weights.odd + i, TILE * 4);
      add_tiles<WEIGHED + 1, WEIGHTS + 1, CACHED>();
      if (!d)
        for (int k = i; k < i + SIDE; ++k) ahead.fetch(k);
    }
    store_tile<WEIGHED>(sums, 2 * LINE_BYTES);
    store_tile<WEIGHED + 1>(sums + SIDE, 2 * LINE_BYTES);
    for (int r = 0; r < rows; ++r)
      for (int half = 0; half < 2; ++half) {
        float* const at = states + r * shape.state + d + half * VL;
        const vf sum = load_as<vf>(at) * shrink[r] + load_as<vf>(sums + (2 * r + half) * SIDE);
        std::memcpy(at, &sum, sizeof sum);
      }
  }
}

#else
constexpr int TILE_ROWS = MAX_ROWS, FEW = 0;
inline bool fits_tiles(const AttentionCall&) { return false; }
inline int64_t query_floats(int64_t, int) { return 0; }
inline void turn_queries(const uint8_t* const*, int64_t, int64_t, int, float*) {}
inline void begin_decode_tiles(int) {}
inline void end_tiles() {}
#endif

}  // namespace
}  // namespace kv::KV_ISA
