// The product of bf16 on matrix tiles, for any number of rows. Include only from product.isa.cpp.
//
//   weights   [16 outputs][32 inputs]: a tile, where they lie in memory
//   rows      [group of 16][chunk of 32 inputs][16 pairs of inputs][16 rows] dwords: turned once, a tile each
//   sums      [16 outputs][16 rows] floats, turned back when they are stored
//
// Outputs come in panels, whose weights stay in L2 while all rows pass by. The first groups of rows find them in memory. So
// the 16 outputs of a tile are rows of weights far apart, and the next tile takes the rows behind them: each is a stream,
// and memory is read fastest in several (see Streams in product.isa.cpp). The other groups take neighbouring outputs, whose
// results are whole lines; where groups are many, all of them do, and ask for the weights that follow.
//
// A sum is a chain over the chunks, whatever the rows beside it: a row has the same bits in every batch. The unit takes
// numbers below 2^-126 for zero.
#pragma once

#include <algorithm>
#include <type_traits>

#include "fetch.h"
#include "product_packed.h"
#include "store.h"
#include "tiles.h"

namespace kv::KV_ISA {
namespace {

constexpr int SIDE = 16;                  // rows or outputs of a tile
constexpr int CHUNK = 32;                 // inputs of a tile
constexpr int64_t TILE_BYTES = 1024;
constexpr int64_t TILE_SUMS = SIDE * SIDE;
constexpr int64_t ROW_BYTES = CHUNK * sizeof(uint16_t);
constexpr int64_t MOST_OUTPUTS = 16;      // of a stream
constexpr int64_t NEAR_BYTES = 1 << 20;   // of rows that stay in L2 while panels pass by

inline int64_t chunks_of(int64_t inputs) { return (inputs + CHUNK - 1) / CHUNK; }
inline int64_t groups_of(int64_t rows) { return (rows + SIDE - 1) / SIDE; }

inline int64_t tile_floats(int64_t rows, int64_t inputs) {
  return groups_of(rows) * chunks_of(inputs) * (TILE_BYTES / static_cast<int64_t>(sizeof(float)));
}

// Rows begin to end of x, into tiles. Behind the last row of all, its group repeats it.
inline void turn_rows(const Matrix& x, int64_t begin, int64_t end, uint8_t* to) {
  const int64_t whole = x.columns / CHUNK, rest = x.columns % CHUNK, chunks = chunks_of(x.columns);
  for (int64_t first = begin / SIDE * SIDE; first < end; first += SIDE) {
    const uint8_t *at[SIDE], *lasts[SIDE];
    uint16_t last[SIDE][CHUNK] = {};  // items behind the last whole chunk, and zeros: behind them in memory may be NaN
    uint32_t mine = 0;                // columns of the group's tiles
    for (int i = 0; i < SIDE; ++i) {
      const int64_t row = std::clamp(first + i, begin, end - 1);
      if (row == first + i || (row < first + i && end == x.rows)) mine |= 1u << i;
      at[i] = x.row(row);
      lasts[i] = reinterpret_cast<const uint8_t*>(last[i]);
      std::memcpy(last[i], at[i] + whole * ROW_BYTES, rest * sizeof(uint16_t));
    }
    uint8_t* tile = to + first / SIDE * chunks * TILE_BYTES;
    if (x.rows == 1) {  // dword by dword: nobody reads what lies between
      for (int64_t chunk = 0; chunk < chunks; ++chunk, tile += TILE_BYTES) {
        const uint8_t* const from = chunk < whole ? at[0] + chunk * ROW_BYTES : lasts[0];
        each<SIDE>([&]<int i>() INLINED { std::memcpy(tile + i * ROW_BYTES, from + i * 4, 4); });
      }
      return;
    }
    for (int64_t chunk = 0; chunk < chunks; ++chunk, tile += TILE_BYTES) {
      vu turned[SIDE];
      load_turned(chunk < whole ? at : lasts, chunk < whole ? chunk * ROW_BYTES : 0, turned);
      each<SIDE>([&]<int i>() INLINED { _mm512_mask_store_epi32(tile + i * ROW_BYTES, mine, (__m512i)turned[i]); });
    }
  }
}

struct TileWeights {
  const uint8_t* at;
  int64_t apart, next;  // bytes from one row of a tile to the next, and to the next tile

  TileWeights tile(int64_t number) const { return {at + number * next, apart, next}; }
};

template <int TILE, bool PASSES>
inline void load_either(const void* at, int64_t apart) {
  if constexpr (PASSES) load_passing_tile<TILE>(at, apart);
  else load_tile<TILE>(at, apart);
}

// OUTPUTS tiles of weights times GROUPS groups of rows: sums [group][output of two] += chunks `from` to `to`, the first of
// which sets them. ARE_FEW: rows; they are read again and again then while weights pass by, and else the other way round,
// and what goes on meanwhile has its turn with each chunk.
template <int OUTPUTS, int GROUPS, bool ARE_FEW, class Meanwhile>
void add_block(TileWeights w, const uint8_t* x, int64_t group_bytes, int64_t from, int64_t to, float* sums,
               Meanwhile& meanwhile) {
  constexpr int BLOCK = OUTPUTS * GROUPS, ROWS = BLOCK + OUTPUTS;  // tiles: sums, then weights, then rows
  static_assert(ROWS + GROUPS <= 8);
  each<BLOCK>([&]<int i>() INLINED {
    if (from) load_tile<i>(sums + (i / OUTPUTS * 2 + i % OUTPUTS) * TILE_SUMS, ROW_BYTES);
    else clear_tile<i>();
  });
  w.at += from * ROW_BYTES, x += from * TILE_BYTES;
  for (int64_t chunk = from; chunk < to; ++chunk, w.at += ROW_BYTES, x += TILE_BYTES) {
    each<GROUPS>([&]<int g>() INLINED { load_either<ROWS + g, !ARE_FEW>(x + g * group_bytes, ROW_BYTES); });
    each<OUTPUTS>([&]<int n>() INLINED { load_either<BLOCK + n, ARE_FEW>(w.at + n * w.next, w.apart); });
    each<BLOCK>([]<int i>() INLINED { add_tiles<i, BLOCK + i % OUTPUTS, ROWS + i / OUTPUTS>(); });
    if constexpr (!ARE_FEW) meanwhile.some();
  }
  each<BLOCK>([&]<int i>() INLINED {
    store_tile<i>(sums + (i / OUTPUTS * 2 + i % OUTPUTS) * TILE_SUMS, ROW_BYTES);
  });
}

// Sums of 16 rows of two neighbouring outputs become dwords, rounded.
inline vu rounded_pair(const float* first, const float* second, vf first_bias, vf second_bias) {
  return bf16_pairs(load_as<vf>(first) + first_bias, load_as<vf>(second) + second_bias);
}

// Rows of up to 16 neighbouring outputs: `pairs` of them are [pair][16 rows] dwords, `apart` bytes apart.
inline void store_turned(const uint8_t* pairs, int64_t apart, int outputs, uint8_t* out, int64_t out_stride, int rows) {
  constexpr std::make_integer_sequence<int, VL> lanes;
  const int last = (outputs - 1) / 2;
  if (rows == 1) {
    uint32_t found[8];
    for (int i = 0; i <= last; ++i) std::memcpy(found + i, pairs + i * apart, sizeof found[0]);
    std::memcpy(out, found, outputs * sizeof(uint16_t));
    return;
  }
  vu some[8];
  each<8>([&]<int i>() INLINED { some[i] = load_as<vu>(pairs + std::min(i, last) * apart); });
  for (int round = 1; round < 8; round *= 2) {  // as in load_turned; a vector ends up with two rows of 8 pairs
    vu next[8];
    each<4>([&]<int i>() INLINED {
      next[2 * i] = zipped<0>(some[i], some[i + 4], lanes);
      next[2 * i + 1] = zipped<VL / 2>(some[i], some[i + 4], lanes);
    });
    each<8>([&]<int i>() INLINED { some[i] = next[i]; });
  }
  const auto wanted = static_cast<__mmask16>((1u << outputs) - 1);
  if (rows == SIDE && outputs == SIDE) {
    each<8>([&]<int i>() INLINED {
      std::memcpy(out + 2 * i * out_stride, &some[i], sizeof some[i] / 2);
      const __m256i other = _mm512_extracti64x4_epi64((__m512i)some[i], 1);
      std::memcpy(out + (2 * i + 1) * out_stride, &other, sizeof other);
    });
    return;
  }
  each<8>([&]<int i>() INLINED {
    const auto two = (__m512i)some[i];
    uint8_t* const at = out + 2 * i * out_stride;
    if (2 * i < rows) _mm256_mask_storeu_epi16(at, wanted, _mm512_castsi512_si256(two));
    if (2 * i + 1 < rows) _mm256_mask_storeu_epi16(at + out_stride, wanted, _mm512_extracti64x4_epi64(two, 1));
  });
}

constexpr int64_t FEW = 2;            // groups of rows that stay in L1 while weights pass by
constexpr int64_t MANY = 12;          // groups that give time enough to ask for the weights that follow
constexpr int64_t CLOSE_CHUNKS = 18;  // of two tiles of weights that stay there while more rows do: 36 KiB

// Up to FEW groups times `tiles` tiles of weights, which pass by: sums [group][tile].
inline void add_few(const TileWeights& weights, int tiles, const uint8_t* x, int64_t chunks, int64_t groups, float* sums) {
  Fetch none;
  const auto add = groups == 1 ? add_block<1, 1, true, Fetch> : add_block<1, 2, true, Fetch>;
  for (int n = 0; n < tiles; ++n)
    add(weights.tile(n), x, chunks * TILE_BYTES, 0, chunks, sums + n * TILE_SUMS, none);
}

// `groups` groups times one tile of weights or two, which stay. `meanwhile(g)` is what gets its turns while group g and the
// next are multiplied for the last time.
template <class Meanwhile>
void add_many(const TileWeights& weights, int tiles, const uint8_t* x, int64_t chunks, int64_t groups, float* sums,
              Meanwhile meanwhile) {
  using Some = std::remove_reference_t<decltype(meanwhile(0))>;
  const int64_t pieces = (chunks + CLOSE_CHUNKS - 1) / CLOSE_CHUNKS, group_bytes = chunks * TILE_BYTES;
  const auto add_two = tiles == 1 ? add_block<1, 2, false, Some> : add_block<2, 2, false, Some>;
  const auto add_one = tiles == 1 ? add_block<1, 1, false, Some> : add_block<2, 1, false, Some>;
  for (int64_t p = 0; p < pieces; ++p)
    for (int64_t g = 0; g < groups; g += 2)
      (g + 1 < groups ? add_two : add_one)(weights, x + g * group_bytes, group_bytes, chunks * p / pieces,
                                           chunks * (p + 1) / pieces, sums + g * 2 * TILE_SUMS,
                                           meanwhile(p + 1 == pieces ? g : -1));
}

struct TileProduct {
  const uint8_t* x;  // rows as tiles
  const Matrix& w;
  const Matrix* bias;
  const Matrix& out;
  int64_t chunks;
  float* sums;      // [group][two tiles][16 outputs][16 rows]
  uint8_t* pairs;   // of few groups: [two outputs of a stream][stream][group][16 rows] dwords
  uint8_t* copied;  // weights of a tile

  // Outputs from `begin` on: those of `tiles` tiles, of which `count` are wanted. Groups `first` to `last`.
  void panel(int64_t begin, int64_t tiles, int64_t count, int64_t first, int64_t last) const {
    const int64_t row_bytes = w.row_stride * BYTES, few = last - first > MANY ? 0 : std::min(last - first, FEW);
    TileWeights along{w.row(begin), tiles * row_bytes, row_bytes}, together{w.row(begin), row_bytes, SIDE * row_bytes};
    if (w.columns % CHUNK || begin + tiles * SIDE > w.rows) along = together = copied_weights(begin, count);
    for (int64_t s = 0; s < tiles && few; s += 2) {
      fetch_out(begin, count, first * SIDE, std::min(last * SIDE, out.rows), s, tiles);
      add_few(along.tile(s), s + 1 < tiles ? 2 : 1, x + first * chunks * TILE_BYTES, chunks, few, sums);
      pair_up(begin, tiles, s, few);
    }
    for (int64_t i = 0; i < SIDE && i * tiles < count && few; ++i)
      for (int64_t g = 0; g < few; ++g)
        store_turned(pairs + (i * few + g) * PAIR_BYTES, SIDE * few * PAIR_BYTES, static_cast<int>(tiles),
                     place(first + g, begin + i * tiles), out.row_stride * BYTES, rows_of(first + g));
    for (int64_t t = 0; t < tiles && first + few < last; t += 2) {
      const int64_t next = begin + (t + 2) * SIDE, stop = std::min(next + 2 * SIDE, w.rows);
      const NextWeights those{w.row(next), few ? 0 : std::max<int64_t>(0, stop - next) * row_bytes};
      Fetch fetch(those, (last - first + 1) / 2 * chunks);
      add_many(together.tile(t), t + 1 < tiles ? 2 : 1, x + (first + few) * chunks * TILE_BYTES, chunks, last - first - few,
               sums, [&](int64_t) -> Fetch& { return fetch; });
      for (int64_t g = first + few; g < last; ++g)
        store_block(sums + (g - first - few) * 2 * TILE_SUMS, begin + t * SIDE,
                    std::min<int64_t>(2 * SIDE, count - t * SIDE), g);
    }
  }

 private:
  static constexpr int64_t BYTES = sizeof(uint16_t), PAIR_BYTES = SIDE * sizeof(uint32_t);

  uint8_t* place(int64_t group, int64_t output) const { return out.row(group * SIDE) + output * BYTES; }
  int rows_of(int64_t group) const { return static_cast<int>(std::min<int64_t>(SIDE, out.rows - group * SIDE)); }

  // Asks for the part of the panel's results that belongs to tiles `s` and `s` + 1, to be written.
  void fetch_out(int64_t begin, int64_t count, int64_t first_row, int64_t last_row, int64_t s, int64_t tiles) const {
    const int64_t rows = last_row - first_row, stop = std::min(tiles, s + 2);
    for (int64_t r = first_row + rows * s / tiles; r < first_row + rows * stop / tiles; ++r)
      for (int64_t at = 0; at < count * BYTES; at += 64) __builtin_prefetch(out.row(r) + begin * BYTES + at, 1, 2);
  }

  // Outputs s and s + 1 of all streams.
  void pair_up(int64_t begin, int64_t tiles, int64_t s, int64_t groups) const {
    uint8_t* at = pairs + s / 2 * SIDE * groups * PAIR_BYTES;
    for (int64_t i = 0; i < SIDE; ++i) {
      const int64_t output = begin + i * tiles + s;
      const vf low = bias_of(output), high = bias_of(output + 1);
      for (int64_t g = 0; g < groups; ++g, at += PAIR_BYTES) {
        const float* const two = sums + 2 * g * TILE_SUMS + i * SIDE;
        const vu pair = rounded_pair(two, two + TILE_SUMS, low, high);
        std::memcpy(at, &pair, sizeof pair);
      }
    }
  }

  // Two tiles of neighbouring outputs, of which `count` are wanted, and a group of rows.
  void store_block(const float* from, int64_t output, int64_t count, int64_t group) const {
    vu pairs_of[SIDE];
    each<SIDE>([&]<int i>() INLINED {
      const float* const first = from + 2 * i * SIDE;
      if (bias) pairs_of[i] = rounded_pair(first, first + SIDE, bias_of(output + 2 * i), bias_of(output + 2 * i + 1));
      else pairs_of[i] = rounded_pair(first, first + SIDE, vf{}, vf{});
    });
    turn(pairs_of);
    uint8_t* const at = place(group, output);
    const int64_t stride = out.row_stride * BYTES;
    if (rows_of(group) == SIDE && count == 2 * SIDE) {
      each<SIDE>([&]<int r>() INLINED { std::memcpy(at + r * stride, &pairs_of[r], sizeof(vu)); });
      return;
    }
    const auto wanted = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    for (int r = 0; r < rows_of(group); ++r) _mm512_mask_storeu_epi16(at + r * stride, wanted, (__m512i)pairs_of[r]);
  }

  vf bias_of(int64_t output) const {
    return bias && output < w.rows ? splat(load_part<DType::bf16>(bias->row(0) + output * BYTES, 1)[0]) : vf{};
  }

  TileWeights copied_weights(int64_t begin, int64_t count) const {  // of one tile, up to a whole one with zeros
    const int64_t bytes = w.columns * BYTES, apart = chunks * ROW_BYTES;
    for (int64_t i = 0; i < SIDE; ++i) {
      const int64_t there = i < count ? bytes : 0;
      if (there) std::memcpy(copied + i * apart, w.row(begin + i), there);
      std::memset(copied + i * apart + there, 0, apart - there);
    }
    return {copied, apart, 0};
  }
};

// Blocks of groups of rows that stay in L2 while panels of outputs begin to end pass by, `least` outputs or a multiple of it:
// run(first output, how many, first group, last group).
template <class Run>
void over_panels(int64_t groups, int64_t near, int64_t begin, int64_t end, int64_t least, bool is_whole, Run run) {
  const int64_t blocks = (groups + near - 1) / near;  // as equal as they can be
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t n = begin; n < end;) {
      const int64_t panels = (end - n + SIDE * MOST_OUTPUTS - 1) / (SIDE * MOST_OUTPUTS);
      const int64_t each = is_whole ? std::max<int64_t>(1, (end - n) / (least * panels)) : 1;
      const int64_t stop = std::min(end, n + each * least);
      run(n, stop - n, groups * b / blocks, groups * (b + 1) / blocks);
      n = stop;
    }
}

inline int64_t near_groups(int64_t groups, int64_t chunks) {
  return std::min(groups, std::max<int64_t>(2, NEAR_BYTES / (chunks * TILE_BYTES) / 2 * 2));
}

inline void run_tiles(const uint8_t* x, const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin,
                      int64_t end) {
  const int64_t groups = groups_of(out.rows), chunks = chunks_of(w.columns), near = near_groups(groups, chunks);
  if (!groups) return;
  const int64_t sums = 2 * near * TILE_SUMS, pairs = MOST_OUTPUTS * TILE_SUMS;
  float* const scratch = thread_scratch(sums + pairs + SIDE * chunks * ROW_BYTES / static_cast<int64_t>(sizeof(float)));
  const TileProduct product{x, w, bias, out, chunks, scratch, reinterpret_cast<uint8_t*>(scratch + sums),
                            reinterpret_cast<uint8_t*>(scratch + sums + pairs)};
  begin_tiles();
  over_panels(groups, near, begin, end, SIDE, w.columns % CHUNK == 0,
              [&](int64_t output, int64_t count, int64_t first, int64_t last) {
                product.panel(output, (count + SIDE - 1) / SIDE, count, first, last);
              });
  end_tiles();
}

}  // namespace
}  // namespace kv::KV_ISA
