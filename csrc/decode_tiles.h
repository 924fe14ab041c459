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
constexpr int64_t LINE_BYTES = 64;
constexpr int MOST_DIMS = 256;
constexpr int FEW = 4, TILE_ROWS = SIDE;  // queries that are multiplied at once, at most

inline bool fits_tiles(const AttentionCall& call) {
  return call.q.dtype == DType::bf16 && call.cache.dtype == DType::bf16 && call.cache.head_dim % CHUNK == 0 &&
         call.cache.head_dim <= MOST_DIMS;
}

// Numbers of tiles for up to ROWS queries. Of few, those for even and for odd dims are rows of the same tiles.
template <int ROWS>
struct Numbers {
  static constexpr int HALVES = ROWS == FEW ? 1 : 2;    // tiles of weights
  static constexpr int SCORES = 0, AT_ONCE = 2 * HALVES;
  static constexpr int SUMS = ROWS == FEW ? 4 : 0;      // of two chunks of dims, HALVES each
  static constexpr int QUERIES = ROWS == FEW ? 2 : 4;
  static constexpr int WEIGHTS = ROWS == FEW ? 3 : 4;
  static constexpr int CACHED = 6;                      // two
};

inline void begin_decode_tiles(int rows) {
  TileConfig config;
  if (rows <= FEW) {
    using Few = Numbers<FEW>;
    for (const int tile : {Few::SCORES, Few::SCORES + 1, Few::QUERIES}) config.row_bytes[tile] = FEW * 4;
    for (const int tile : {Few::WEIGHTS, Few::SUMS, Few::SUMS + 1}) config.rows[tile] = 2 * FEW;
  }
  begin_tiles(config);
}

// -- cached rows ------------------------------------------------------------------------------------------------------

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
    const bool as_it_lies = count == SIDE && follow_one_another(tile.row + i, stride);
    lines.at[i / SIDE] = as_it_lies ? base + tile.row[i] : copies;
    lines.apart[i / SIDE] = as_it_lies ? stride : row_bytes;
    if (as_it_lies) continue;
    for (int k = 0; k < SIDE; ++k)
      for (int64_t at = 0; at < row_bytes; at += LINE_BYTES) {
        const vu line = k < count ? load_as<vu>(base + tile.row[i + k] + at) : vu{};
        std::memcpy(copies + k * row_bytes + at, &line, sizeof line);
      }
  }
  return lines;
}

// -- scores -----------------------------------------------------------------------------------------------------------

// Queries of all rows of a share, one KV head: [pairs of dims][rows rounded up] dwords. 16 more may be read behind.
inline int64_t line_dwords(int64_t rows) { return rows <= FEW ? FEW : (rows + SIDE - 1) / SIDE * SIDE; }
inline int64_t query_floats(int64_t rows, int dim) { return line_dwords(rows) * (dim / 2); }

// Lane i of a, then of b, from FIRST on, in units of two dwords.
template <int FIRST, int... I>
inline vu zipped_pairs(vu a, vu b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (FIRST + I / 4 * 2 + I % 2 + I / 2 % 2 * VL)...);
}

inline void turn_queries(const uint8_t* const* at, int64_t offset, int64_t rows, int dim, float* to) {
  constexpr std::make_integer_sequence<int, VL> lanes;
  const int64_t apart = line_dwords(rows);
  for (int64_t first = 0; first < rows; first += SIDE)
    for (int pair = 0; pair < dim / 2; pair += SIDE) {
      vu turned[SIDE];
      const auto load = [&]<int i>() INLINED {
        turned[i] = first + i < rows ? load_as<vu>(at[first + i] + offset + pair * 4) : vu{};
      };
      if (rows <= FEW) {
        each<FEW>(load);
        const vu low[2] = {zipped<0>(turned[0], turned[1], lanes), zipped<0>(turned[2], turned[3], lanes)};
        const vu high[2] = {zipped<VL / 2>(turned[0], turned[1], lanes), zipped<VL / 2>(turned[2], turned[3], lanes)};
        const vu lines[4] = {zipped_pairs<0>(low[0], low[1], lanes), zipped_pairs<VL / 2>(low[0], low[1], lanes),
                             zipped_pairs<0>(high[0], high[1], lanes), zipped_pairs<VL / 2>(high[0], high[1], lanes)};
        std::memcpy(to + pair * FEW, lines, sizeof lines);
      } else {
        each<SIDE>(load);
        turn(turned);
        each<SIDE>([&]<int i>() INLINED { std::memcpy(to + (pair + i) * apart + first, &turned[i], sizeof(vu)); });
      }
    }
}

// to[r]: dword r of each of 16 lines of FEW.
inline void turn_few(const float* lines, vf (&to)[FEW]) {
  vf line[4], half[4];
  each<4>([&]<int i>() INLINED { line[i] = load_as<vf>(lines + i * VL); });
  each<4>([&]<int i>() INLINED {  // rows 0 and 1, or 2 and 3, of keys 0 to 7, or 8 to 15
    constexpr int r = i % 2 * 2, from = i / 2 * 2;
    half[i] = __builtin_shufflevector(line[from], line[from + 1], r, r + 4, r + 8, r + 12, r + 16, r + 20, r + 24, r + 28, r + 1,
                                      r + 5, r + 9, r + 13, r + 17, r + 21, r + 25, r + 29);
  });
  each<2>([&]<int i>() INLINED {
    to[2 * i] = __builtin_shufflevector(half[i], half[2 + i], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    to[2 * i + 1] =
        __builtin_shufflevector(half[i], half[2 + i], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  });
}

// scores[r * TILE + key] of `rows` queries, ROWS at most; `line`: dwords from one pair of dims to the next.
template <int ROWS>
[[gnu::noinline]] void score_tiles(const Lines& keys, const Tile& tile, int dim, const float* queries, int64_t line,
                                   int rows, float* scores, Ahead ahead) {
  using N = Numbers<ROWS>;
  alignas(64) float found[N::AT_ONCE * SIDE * ROWS];
  const int groups = (tile.count + SIDE - 1) / SIDE;
  for (int first = 0; first < groups; first += N::AT_ONCE) {
    const int some = groups - first;
    each<N::AT_ONCE>([]<int g>() INLINED { clear_tile<N::SCORES + g>(); });
    for (int d = 0; d < dim; d += CHUNK) {
      load_tile<N::QUERIES>(queries + d / 2 * line, line * 4);
      each<N::AT_ONCE>([&]<int g>() INLINED {
        if (g >= some) return;
        load_tile<N::CACHED + g % 2>(keys.at[first + g] + d * 2, keys.apart[first + g]);
        add_tiles<N::SCORES + g, N::CACHED + g % 2, N::QUERIES>();
        if (!d)
          for (int k = 0; k < SIDE; ++k) ahead.fetch((first + g) * SIDE + k);
      });
    }
    each<N::AT_ONCE>([&]<int g>() INLINED { store_tile<N::SCORES + g>(found + g * SIDE * ROWS, ROWS * 4); });
    for (int g = 0; g < N::AT_ONCE && g < some; ++g) {
      float* const to = scores + (first + g) * SIDE;
      if constexpr (ROWS == FEW) {
        vf turned[FEW];
        turn_few(found + g * SIDE * FEW, turned);
        for (int r = 0; r < rows; ++r) std::memcpy(to + r * TILE, &turned[r], sizeof(vf));
      } else {
        vu turned[SIDE];
        std::memcpy(turned, found + g * SIDE * SIDE, sizeof turned);
        turn(turned);
        each<SIDE>([&]<int r>() INLINED { std::memcpy(to + r * TILE, &turned[r], sizeof(vf)); });
      }
    }
  }
}

// -- sums -------------------------------------------------------------------------------------------------------------

// Weights of a row for 16 keys into [for even dims, for odd dims][ROWS][TILE] dwords; returns them rounded.
template <int ROWS>
inline vf put_weights(vf weights, uint32_t* to) {
  const vu even = (vu)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)weights)), odd = even << 16;
  std::memcpy(to, &even, sizeof even);
  std::memcpy(to + ROWS * TILE, &odd, sizeof odd);
  return bits<vf>(odd);
}

// Sums of the states = sums * shrink + weights times values, of `rows` rows, ROWS at most.
template <int ROWS>
[[gnu::noinline]] void weigh_tiles(const Lines& values, const Tile& tile, const Shape& shape, const uint32_t* weights,
                                   int rows, const vf* shrink, float* states, Ahead ahead) {
  using N = Numbers<ROWS>;
  constexpr int TILE_FLOATS = 2 * ROWS / N::HALVES * SIDE;
  alignas(64) float sums[2 * N::HALVES * TILE_FLOATS];  // [chunk][even, odd][ROWS][16]
  for (int d = 0; d < shape.dim; d += 2 * CHUNK) {
    const int chunks = d + CHUNK < shape.dim ? 2 : 1;
    each<2 * N::HALVES>([]<int i>() INLINED { clear_tile<N::SUMS + i>(); });
    for (int i = 0; i < tile.count; i += SIDE) {
      each<N::HALVES>([&]<int half>() INLINED {
        load_tile<N::WEIGHTS + half>(weights + half * ROWS * TILE + i, TILE * 4);
      });
      each<2>([&]<int chunk>() INLINED {
        if (chunk >= chunks) return;
        load_tile<N::CACHED + chunk>(values.at[i / SIDE] + d * 2 + chunk * LINE_BYTES, values.apart[i / SIDE]);
        each<N::HALVES>([]<int half>() INLINED {
          add_tiles<N::SUMS + chunk * N::HALVES + half, N::WEIGHTS + half, N::CACHED + chunk>();
        });
      });
      if (!d)
        for (int k = i; k < i + SIDE; ++k) ahead.fetch(k);
    }
    each<2 * N::HALVES>([&]<int i>() INLINED { store_tile<N::SUMS + i>(sums + i * TILE_FLOATS, LINE_BYTES); });
    for (int r = 0; r < rows; ++r)
      for (int part = 0; part < 2 * chunks; ++part) {
        float* const at = states + r * shape.state + d + part * VL;
        const vf sum = load_as<vf>(at) * shrink[r] + load_as<vf>(sums + (part * ROWS + r) * SIDE);
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
