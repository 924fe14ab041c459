// The product for many rows: weights are widened and turned once a panel, so that a vector holds one input of VL
// outputs, and a row's input is multiplied with all its lanes. Include only from product.isa.cpp.
//
//   rows      [row][lane][step] floats: input step * VL + lane, counted as few rows are widened
//   weights   [panel: 2 VL outputs][lane][step][2 VL] floats
//
// Sums are those of few rows, [lane] += x[i * VL + lane] * w[i * VL + lane], in the same order and with the same tree
// at the end: here one lane after the other, each for 2 VL outputs at once. So no vector is ever added up across, which
// with few inputs takes a tenth of the time.
#pragma once

#include <algorithm>

#include "decode.h"
#include "fetch.h"
#include "lanes.h"
#include "registers.h"
#include "store.h"
#include "turn.h"

namespace kv::KV_ISA {
namespace {

constexpr int GROUP = 2 * VL;                // items of a row that are read at once
constexpr int PACKED = 2 * VL;               // outputs of a panel
constexpr int PACKED_ROWS = VL == 16 ? 12 : 6;
constexpr int64_t PACKED_FLOATS = 64 << 10;  // of panels that stay in L2 while all rows pass by: 256 KiB
constexpr int AHEAD = 12 * PACKED;           // floats of a panel to what is asked for
constexpr int64_t MANY_ROWS = 96;            // fewer are not worth packing weights for
constexpr int64_t MOST_FETCHED = 256;        // rows: of more, weights asked for would only push others out of L2

struct PackedShape {
  int64_t inputs;

  int64_t steps() const { return (inputs + GROUP - 1) / GROUP * 2; }
  int64_t row_lane_floats() const { return (steps() + VL - 1) / VL * VL; }
  int64_t lane_floats() const { return steps() * PACKED + 16; }  // a line more: powers of two share places of a cache
  int64_t panel_floats() const { return lane_floats() * VL; }
};

inline bool pays_to_pack(int64_t rows, int64_t inputs) {
  return rows >= MANY_ROWS && PackedShape{inputs}.panel_floats() <= PACKED_FLOATS * 3 / 2;
}

// One group of VL outputs. `at`: their items; lanes are `apart` floats apart.
template <DType T>
[[gnu::always_inline]] inline void pack_group(const uint8_t* const (&at)[VL], int64_t offset, float* to,
                                              int64_t apart) {
  for (int half = 0; half < (T == DType::bf16 ? 1 : 2); ++half) {
    vu words[VL];
    load_turned(at, offset + half * static_cast<int64_t>(sizeof(vu)), words);
    each<VL>([&]<int i>() INLINED {
      const auto put = [&](int number, vu value) INLINED {
        std::memcpy(to + i * apart + number * PACKED, &value, sizeof value);
      };
      if constexpr (T == DType::bf16) {
        put(0, words[i] << 16);
        put(1, words[i] & 0xffff0000u);
      } else {
        put(half, words[i]);
      }
    });
  }
}

// The panel of outputs from `begin` on; those behind `end` repeat the last.
template <DType T>
void pack_panel(const Matrix& w, int64_t begin, int64_t end, float* to) {
  using item = typename Stored<T>::item;
  const PackedShape shape{w.columns};
  const int64_t whole = w.columns / GROUP, rest = w.columns % GROUP, apart = shape.lane_floats();
  const uint8_t *rows[2][VL], *lasts[2][VL];
  item last[2][VL][GROUP] = {};  // items behind the last whole group, and zeros: behind them in memory may be NaN
  for (int v = 0; v < 2; ++v)
    for (int i = 0; i < VL; ++i) {
      rows[v][i] = w.row(std::min(begin + v * VL + i, end - 1));
      lasts[v][i] = reinterpret_cast<const uint8_t*>(last[v][i]);
      std::memcpy(last[v][i], rows[v][i] + whole * GROUP * sizeof(item), rest * sizeof(item));
    }
  for (int64_t g = 0; g < whole; ++g)
    for (int v = 0; v < 2; ++v)
      pack_group<T>(rows[v], g * GROUP * static_cast<int64_t>(sizeof(item)), to + g * 2 * PACKED + v * VL, apart);
  for (int v = 0; v < 2 && rest; ++v) pack_group<T>(lasts[v], 0, to + whole * 2 * PACKED + v * VL, apart);
}

// A widened row, [step][lane] turned into [lane][step]; zeros follow it up to a multiple of VL steps.
inline void pack_row(const float* widened, int64_t inputs, float* to) {
  const int64_t steps = PackedShape{inputs}.row_lane_floats();
  for (int64_t i = 0; i < steps; i += VL) {
    const uint8_t* at[VL];
    vu turned[VL];
    each<VL>([&]<int k>() INLINED { at[k] = reinterpret_cast<const uint8_t*>(widened + (i + k) * VL); });
    load_turned(at, 0, turned);
    each<VL>([&]<int lane>() INLINED { std::memcpy(to + lane * steps + i, &turned[lane], sizeof(vu)); });
  }
}

// -- sums -------------------------------------------------------------------------------------------------------------

// One lane's sums of R rows.
template <int R>
void add_lane(const float* x, int64_t stride, const float* w, int64_t steps, vf (&sums)[R][2]) {
  vf sum[R][2] = {};
#pragma GCC unroll 4  // so few turns that the processor foresees the last
  for (int64_t i = 0; i < steps; ++i, w += PACKED, ++x) {
    __builtin_prefetch(w + AHEAD);
    const vf first = load_as<vf>(w), second = load_as<vf>(w + VL);
    each<R>([&]<int r>() INLINED {
      const vf one = splat(x[r * stride]);
      add_product(sum[r][0], one, first);
      add_product(sum[r][1], one, second);
    });
  }
  each<R>([&]<int r>() INLINED { sums[r][0] = sum[r][0], sums[r][1] = sum[r][1]; });
}

template <int R>
inline vf added_up(vf (&lanes)[VL][R][2], int r, int v) {  // in the tree of sums<VL / 2, VL>()
  vf some[VL];
#pragma GCC unroll 16
  for (int i = 0; i < VL; ++i) some[i] = lanes[i][r][v];
#pragma GCC unroll 4
  for (int half = VL / 2; half; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) some[i] += some[i + half];
  return some[0];
}

// A tile of R rows times one panel.
template <DType T, int R>
void multiply_tile(const float* x, int64_t stride, const float* w, int64_t inputs, const uint8_t* bias,
                   const Matrix& out, int64_t first_row, int64_t begin, int outputs, Fetch& fetch) {
  using item = typename Stored<T>::item;
  const PackedShape shape{inputs};
  vf lanes[VL][R][2];
  for (int lane = 0; lane < VL; ++lane) {
    fetch.some();
    add_lane<R>(x + lane * shape.row_lane_floats(), stride, w + lane * shape.lane_floats(), shape.steps(), lanes[lane]);
  }
  for (int v = 0; v < 2 && v * VL < outputs; ++v) {
    const int count = std::min(VL, outputs - v * VL);
    const vf added = bias ? load_part<T>(bias + v * VL * sizeof(item), count) : vf{};
    for (int r = 0; r < R; ++r) {
      vf total = added_up(lanes, r, v);
      if (bias) total += added;
      uint8_t* const at = out.row(first_row + r) + (begin + v * VL) * sizeof(item);
      if (count == VL) Storing<T>::store(at, total);
      else store_part<T>(at, total, count);
    }
  }
}

template <DType T, int R = PACKED_ROWS, class... Rest>
void multiply_rows(int64_t rows, Rest&&... rest) {
  if (rows == R) multiply_tile<T, R>(rest...);
  else if constexpr (R > PACKED_ROWS / 2) multiply_rows<T, R - 1>(rows, rest...);
}

// `x`: rows as widened, `stride` floats apart. REQUIRES: pays_to_pack(out.rows, w.columns).
template <DType T>
void run_packed(const float* x, int64_t stride, const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin,
                int64_t end, NextWeights next) {
  const int64_t floats = PackedShape{w.columns}.panel_floats();
  const int64_t tiles = (out.rows + PACKED_ROWS - 1) / PACKED_ROWS;  // as equal as they can be
  const int64_t panels = std::min(std::max<int64_t>(1, PACKED_FLOATS / floats), (end - begin + PACKED - 1) / PACKED);
  const int64_t at_once = panels * PACKED;
  float* const packed = thread_scratch(panels * floats);
  for (int64_t first = begin; first < end; first += at_once) {
    const int64_t last = std::min(end, first + at_once), following = std::min(end, last + at_once);
    const NextWeights those{w.row(last), (following - last) * w.row_stride * item_bytes(T)};
    const int64_t times = out.rows > MOST_FETCHED ? 0 : tiles * ((last - first + PACKED - 1) / PACKED) * VL;
    Fetch fetch(last < end ? those : next, times);
    for (int64_t n = first; n < last; n += PACKED) pack_panel<T>(w, n, last, packed + (n - first) / PACKED * floats);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = out.rows * t / tiles, stop = out.rows * (t + 1) / tiles;
      for (int64_t n = first; n < last; n += PACKED)
        multiply_rows<T>(stop - row, x + row * stride, stride, packed + (n - first) / PACKED * floats, w.columns,
                         bias ? bias->row(0) + n * sizeof(typename Stored<T>::item) : nullptr, out, row, n,
                         static_cast<int>(std::min<int64_t>(PACKED, last - n)), fetch);
    }
  }
}

}  // namespace
}  // namespace kv::KV_ISA
