// silu(x gate^T) * (x up^T) on matrix tiles, for a product that reads it: as product_tiles.h has rows, and without ever being
// turned, for sums of two neighbouring outputs are a line of dwords there. Include only from product.isa.cpp.
//
// Of all groups of rows, a panel's gate is multiplied first; SiLU of a pair of groups is computed while up of the next pair
// is multiplied.
#pragma once

#include "product_tiles.h"
#include "silu.h"

namespace kv::KV_ISA {
namespace {

constexpr int64_t GATE_ROWS = 8;  // fewer: of most columns of a group nobody would read SiLU

inline bool fits_gate(int64_t rows, const Matrix& w) {
  return rows >= GATE_ROWS && w.columns % CHUNK == 0 && w.rows % (2 * CHUNK) == 0;
}

struct TileGate {
  const uint8_t* x;    // rows as tiles
  const Matrix& w;     // gate, then up
  const Matrix* bias;  // as w
  int64_t chunks;      // of inputs
  float *gate, *up;    // sums: [group][two tiles][16 outputs][16 rows]
  uint8_t* out;        // tiles: a chunk is what two tiles of outputs give

  // Outputs begin to begin + 16 tiles, tiles two at a time. Groups `first` to `last`.
  void panel(int64_t begin, int64_t tiles, int64_t first, int64_t last) const {
    const int64_t few = last - first > MANY ? 0 : std::min(last - first, FEW), row_bytes = w.row_stride * 2;
    const uint8_t *gate_at = w.row(begin), *up_at = w.row(num_outputs() + begin);
    for (int64_t s = 0; s < tiles && few; s += 2) {
      const uint8_t* const rows = x + first * chunks * TILE_BYTES;
      add_few(TileWeights{gate_at, tiles * row_bytes, row_bytes}.tile(s), 2, rows, chunks, few, gate);
      add_few(TileWeights{up_at, tiles * row_bytes, row_bytes}.tile(s), 2, rows, chunks, few, up);
      for (int64_t g = 0; g < few; ++g)
        for (int64_t i = 0; i < SIDE; ++i) {
          const int64_t at = 2 * g * TILE_SUMS + i * SIDE;
          put(gate + at, up + at, TILE_SUMS, first + g, begin + i * tiles + s);
        }
    }
    const int64_t next = first + few;  // group
    for (int64_t t = 0; t < tiles && next < last; t += 2) {
      const uint8_t* const rows = x + next * chunks * TILE_BYTES;
      const int64_t turns = (last - next + 1) / 2 * chunks, step = 2 * SIDE * row_bytes;
      Fetch fetch({up_at + t * SIDE * row_bytes, few ? 0 : step}, turns);
      add_many(TileWeights{gate_at, row_bytes, SIDE * row_bytes}.tile(t), 2, rows, chunks, last - next, gate,
               [&](int64_t) -> Fetch& { return fetch; });
      Meanwhile silu{*this, Fetch({gate_at + (t + 2) * SIDE * row_bytes, few || t + 2 >= tiles ? 0 : step}, turns), next,
                     begin + t * SIDE};
      add_many(TileWeights{up_at, row_bytes, SIDE * row_bytes}.tile(t), 2, rows, chunks, last - next, up,
               [&](int64_t g) -> Meanwhile& { return g > 0 ? silu.upto(g) : silu; });
      silu.finish(last - next);
    }
  }

 private:
  // Lines of the groups whose sums are complete, two with each turn.
  struct Meanwhile {
    const TileGate& all;
    Fetch fetch;
    int64_t first_group, first_output;
    int64_t done = 0, known = 0;  // lines: 16 of each group

    Meanwhile& upto(int64_t groups) {
      known = groups * SIDE;
      return *this;
    }
    void some() {
      fetch.some();
      for (int i = 0; i < 2 && done < known; ++i) line();
    }
    void finish(int64_t groups) {
      for (known = groups * SIDE; done < known;) line();
    }
    void line() {
      const int64_t group = done / SIDE, pair = done % SIDE, at = 2 * group * TILE_SUMS + 2 * pair * SIDE;
      all.put(all.gate + at, all.up + at, SIDE, first_group + group, first_output + 2 * pair);
      ++done;
    }
  };

  int64_t num_outputs() const { return w.rows / 2; }

  // Outputs `output` and the next of a group of rows; the second's sums lie `apart` floats behind the first's.
  void put(const float* gate_sums, const float* up_sums, int64_t apart, int64_t group, int64_t output) const {
    vf found[2];
    each<2>([&]<int i>() INLINED {
      const vf gated = silu<DType::bf16>(rounded_to<DType::bf16>(load_as<vf>(gate_sums + i * apart) + bias_of(output + i)));
      found[i] = gated * rounded_to<DType::bf16>(load_as<vf>(up_sums + i * apart) + bias_of(num_outputs() + output + i));
    });
    const vu pair = bf16_pairs(found[0], found[1]);
    const int64_t chunk = group * (num_outputs() / CHUNK) + output / CHUNK;
    std::memcpy(out + chunk * TILE_BYTES + output % CHUNK / 2 * ROW_BYTES, &pair, sizeof pair);
  }

  vf bias_of(int64_t output) const {
    return bias ? splat(load_part<DType::bf16>(bias->row(0) + output * 2, 1)[0]) : vf{};
  }
};

inline void run_gate(const uint8_t* x, int64_t rows, const Matrix& w, const Matrix* bias, int64_t begin, int64_t end,
                     uint8_t* out) {
  const int64_t groups = groups_of(rows), chunks = chunks_of(w.columns), near = near_groups(groups, chunks);
  float* const sums = thread_scratch(4 * near * TILE_SUMS);
  const TileGate gate{x, w, bias, chunks, sums, sums + 2 * near * TILE_SUMS, out};
  begin_tiles();
  over_panels(groups, near, begin, end, CHUNK, true, [&](int64_t output, int64_t count, int64_t first, int64_t last) {
    gate.panel(output, count / SIDE, first, last);
  });
  end_tiles();
}

}  // namespace
}  // namespace kv::KV_ISA
