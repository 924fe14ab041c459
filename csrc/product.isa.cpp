// How the work is cut:
//
//   panel   outputs whose weights stay in L2 while all rows pass by, so that memory is read once
//   tile    up to MAX_ROWS rows: a piece of them stays in L1 while the panel's weights pass by
//   block   the rows of the tile x `outputs_for` outputs: their sums are in registers
//
// Where rows are many, weights are packed first instead (product_packed.h); where the processor has matrix tiles, they
// multiply bf16 (product_tiles.h).
//
// Every sum has a vector of its own, [lane] += x[i * VL + lane] * w[i * VL + lane] for i = 0, 1, ..., and its lanes are
// added in one tree at the end. That depends on nothing but the number of inputs: where a row is cut into pieces, sums
// are put aside and go on as they were.
#include "product.h"

#include "fetch.h"
#include "product_packed.h"
#if defined(KV_ISA_amx)
#include "gate_tiles.h"
#endif

namespace kv::KV_ISA {
namespace {

constexpr int MAX_ROWS = VL == 16 ? 8 : 6;
constexpr int64_t TILE_FLOATS = 6656;       // of a tile's rows that are in L1: 26 KiB
constexpr int64_t PANEL_BYTES = 256 << 10;  // of weights in L2
constexpr int64_t ALIASES = 256;            // floats: rows a multiple of this apart would share few places of a cache
constexpr int STREAM_ROWS = 24;             // rows of weights that a stream runs through (see Streams)

// As many as registers hold the sums of, beside the weights and the row of a product.
constexpr int outputs_for(int rows) {
  if (VL == 16) return rows == 1 ? 8 : rows == 2 ? 6 : rows <= 6 ? 4 : 3;
  return rows == 1 ? 8 : rows == 2 ? 4 : rows == 3 ? 3 : 2;
}

constexpr int most_sums(int rows) {  // of a block of a tile of `rows` or of one row less
  return rows * std::max(outputs_for(rows), outputs_for(std::max(rows - 1, 1)));
}

// Compilers rather load an operand once for each product, and loads are what runs out first.
inline void keep_in_register([[maybe_unused]] vf& v) {
#if defined(KV_AVX512)
  __asm__("" : "+v"(v));
#elif defined(__SSE2__)
  __asm__("" : "+x"(v));
#elif defined(__aarch64__)
  __asm__("" : "+w"(v));
#endif
}

// -- rows, widened ----------------------------------------------------------------------------------------------------

int64_t widened_floats(int64_t inputs) {
  const int64_t floats = PackedShape{inputs}.row_lane_floats() * VL;
  return floats % ALIASES ? floats : floats + std::max(GROUP, 16);
}

// In the order in which weights are told apart: of each group of bf16 first the even items, then the odd ones.
template <DType T>
void widen_row(const uint8_t* x, int64_t inputs, float* to) {
  using item = typename Stored<T>::item;
  const int64_t whole = inputs / GROUP * GROUP;
  vf both[2];
  for (int64_t i = 0; i < whole; i += GROUP) {
    load_two<T>(x + i * sizeof(item), both);
    std::memcpy(to + i, both, sizeof both);
  }
  if (whole == inputs) return;
  item rest[GROUP] = {};
  std::memcpy(rest, x + whole * sizeof(item), (inputs - whole) * sizeof(item));
  load_two<T>(reinterpret_cast<const uint8_t*>(rest), both);
  std::memcpy(to + whole, both, sizeof both);
}

template <DType T>
void widen_rows(const Matrix& x, int64_t begin, int64_t end, float* to) {
  const int64_t floats = widened_floats(x.columns);
  const bool packs = pays_to_pack(x.rows, x.columns);
  float* const row = packs ? thread_scratch(floats) : nullptr;
  if (packs) std::memset(row, 0, floats * sizeof *row);
  for (int64_t r = begin; r < end; ++r) {
    widen_row<T>(x.row(r), x.columns, packs ? row : to + r * floats);
    if (packs) pack_row(row, x.columns, to + r * floats);
  }
}

int64_t prepared_floats(int64_t rows, int64_t inputs, DType weights) {
#if defined(KV_ISA_amx)
  if (weights == DType::bf16) return tile_floats(rows, inputs);
#endif
  return rows * widened_floats(inputs);
}

ProductPieces pieces([[maybe_unused]] int64_t rows, [[maybe_unused]] DType weights) {
#if defined(KV_ISA_amx)  // large ones where weights come from memory: see the streams of product_tiles.h
  if (weights == DType::bf16) return {groups_of(rows) > MANY ? 4 : 1, CHUNK, 3 * SIDE * MOST_OUTPUTS};
#endif
  return {8, 48, int64_t{1} << 40};
}

void prepare(const Matrix& x, DType weights, int64_t begin, int64_t end, float* to) {
#if defined(KV_ISA_amx)
  if (weights == DType::bf16) return turn_rows(x, begin, end, reinterpret_cast<uint8_t*>(to));
#endif
  if (weights == DType::f32) widen_rows<DType::f32>(x, begin, end, to);
  else widen_rows<DType::bf16>(x, begin, end, to);
}

// -- sums -------------------------------------------------------------------------------------------------------------

struct Rows {  // a piece of each row of a tile
  const float* x;
  int64_t stride;  // floats
};

// The same piece of rows of weights. The outputs of a block are n, n + apart, n + 2 apart, ...: memory is read fastest
// in several streams, each from one row on to the next.
struct Streams {
  const uint8_t* w;
  int64_t stride;  // bytes
  int apart;       // rows
  int64_t ahead;   // bytes to what is asked for
};

const vu HIGH_HALVES = vu{} + 0xffff0000u;

template <DType T, int HALF>  // of the group at `at`: even or odd items, or where they are floats the first or last
inline vf half_of(const uint8_t* at) {
  if constexpr (T == DType::bf16) {
    vu words = load_as<vu>(at);
    if constexpr (HALF == 0) return bits<vf>(words << 16);
#if defined(KV_X86) && !defined(KV_AVX512)
    __asm__("vpand %1, %0, %0" : "+x"(words) : "m"(HIGH_HALVES));  // from memory: all registers are taken
    return bits<vf>(words);
#else
    return bits<vf>(words & 0xffff0000u);
#endif
  } else {
    return load_as<vf>(at + HALF * sizeof(vf));
  }
}

// What there is less of stays in registers meanwhile.
template <DType T, int HALF, int R, int N>
[[gnu::always_inline]] inline void add_half(const float* const (&x)[R], const uint8_t* const (&w)[N], int64_t i,
                                            vf (&sum)[R][N]) {
  const auto row = [&](int r) INLINED {
    vf one = load_as<vf>(x[r] + i + HALF * VL);
    keep_in_register(one);
    return one;
  };
  const auto weight = [&](int n) INLINED {
    vf one = half_of<T, HALF>(w[n] + i * sizeof(typename Stored<T>::item));
    keep_in_register(one);
    return one;
  };
  if constexpr (R < N) {
    vf kept[R];
    each<R>([&]<int r>() INLINED { kept[r] = row(r); });
    each<N>([&]<int n>() INLINED {
      const vf one = weight(n);
      each<R>([&]<int r>() INLINED { add_product(sum[r][n], kept[r], one); });
    });
  } else {
    vf kept[N];
    each<N>([&]<int n>() INLINED { kept[n] = weight(n); });
    each<R>([&]<int r>() INLINED {
      const vf one = row(r);
      each<N>([&]<int n>() INLINED { add_product(sum[r][n], one, kept[n]); });
    });
  }
}

// sums [outputs][R] += the products of `groups` groups, for N outputs; the first piece of a row sets them.
template <DType T, int R, int N, bool IS_FIRST>
[[gnu::always_inline]] inline void add_products(Rows rows, Streams streams, int64_t groups, vf* sums) {
  constexpr int64_t BYTES = sizeof(typename Stored<T>::item);
  const int64_t apart = streams.apart * R;
  vf sum[R][N] = {};
  const float* x[R];
  const uint8_t* w[N];
  each<R>([&]<int r>() INLINED {
    x[r] = rows.x + r * rows.stride;
    if (!IS_FIRST) each<N>([&]<int n>() INLINED { sum[r][n] = sums[n * apart + r]; });
  });
  each<N>([&]<int n>() INLINED { w[n] = streams.w + n * streams.apart * streams.stride; });
  for (int64_t i = 0; i < groups * GROUP; i += GROUP) {
    each<N>([&]<int n>() INLINED { __builtin_prefetch(w[n] + i * BYTES + streams.ahead); });
    add_half<T, 0>(x, w, i, sum);
    __asm__("" : "+r"(i));  // to load the words twice takes less than to keep them: registers are full
    add_half<T, 1>(x, w, i, sum);
  }
  each<R>([&]<int r>() INLINED {
    each<N>([&]<int n>() INLINED { sums[n * apart + r] = sum[r][n]; });
  });
}

template <DType T, int R, bool IS_FIRST>
void add_piece(Rows rows, Streams streams, int64_t groups, int outputs, vf* sums, Fetch& fetch) {
  constexpr int N = outputs_for(R);
  streams.apart = outputs / N;
  int n = 0;
  for (; n < streams.apart; ++n, streams.w += streams.stride) {
    fetch.some();
    add_products<T, R, N, IS_FIRST>(rows, streams, groups, sums + n * R);
  }
  streams.w += (N - 1) * streams.apart * streams.stride;
  for (n *= N; n < outputs; ++n, streams.w += streams.stride)
    add_products<T, R, 1, IS_FIRST>(rows, streams, groups, sums + n * R);
}

// Lanes are added, then the bias, then the result is rounded. `of_row`: one of R rows.
template <DType T, int R>
void store_sums(const vf* of_row, int outputs, const uint8_t* bias, uint8_t* out) {
  using item = typename Stored<T>::item;
  for (int n = 0; n < outputs; n += VL, of_row += VL * R) {
    const int count = std::min(VL, outputs - n);
    vf some[VL];
    if (count == VL) each<VL>([&]<int i>() INLINED { some[i] = of_row[i * R]; });
    else
      for (int i = 0; i < VL; ++i) some[i] = of_row[std::min(i, count - 1) * R];
    vf total = sums<VL / 2, VL>(some);
    if (bias) total += load_part<T>(bias + n * sizeof(item), count);
    if (count == VL) Storing<T>::store(out + n * sizeof(item), total);
    else store_part<T>(out + n * sizeof(item), total, count);
  }
}

// -- panels -----------------------------------------------------------------------------------------------------------

template <DType T>
struct Panel {
  using item = typename Stored<T>::item;
  static constexpr int64_t BYTES = sizeof(item);
  static constexpr int MOST = STREAM_ROWS * outputs_for(1);

  const Matrix &w, &out;
  const uint8_t* bias;  // of the first output, or null
  int64_t begin;
  int outputs;
  item rest[MOST][GROUP];  // the items behind the last whole group, and zeros: behind them in memory may be NaN

  Panel(const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin, int outputs)
      : w(w), out(out), bias(bias ? bias->row(0) + begin * BYTES : nullptr), begin(begin), outputs(outputs) {
    const int64_t whole = w.columns / GROUP * GROUP;
    if (whole == w.columns) return;
    std::memset(rest, 0, sizeof rest);
    for (int n = 0; n < outputs; ++n)
      std::memcpy(rest[n], w.row(begin + n) + whole * BYTES, (w.columns - whole) * BYTES);
  }

  template <int R>
  void run(Rows rows, int64_t first_row, Fetch& fetch) const {
    vf sums[STREAM_ROWS * most_sums(R)];
    const int64_t groups = w.columns / GROUP, stride = w.row_stride * BYTES;
    const int64_t pieces = std::max<int64_t>(1, (groups * GROUP * R + TILE_FLOATS - 1) / TILE_FLOATS);
    // The first tile reads weights from memory, the others find them in L2. One row is done soonest with what it has.
    const int64_t ahead = first_row ? 0 : pieces > 1 ? stride : R == 1 ? 512 : 1024;
    for (int64_t p = 0; p < pieces; ++p) {
      const int64_t from = groups * p / pieces, to = groups * (p + 1) / pieces;
      const Streams piece{w.row(begin) + from * GROUP * BYTES, stride, 1, ahead};
      const auto add = p == 0 ? add_piece<T, R, true> : add_piece<T, R, false>;
      add({rows.x + from * GROUP, rows.stride}, piece, to - from, outputs, sums, fetch);
    }
    if (w.columns % GROUP) {
      const Streams last{reinterpret_cast<const uint8_t*>(rest), sizeof rest[0], 1, 0};
      Fetch nothing;
      add_piece<T, R, false>({rows.x + groups * GROUP, rows.stride}, last, 1, outputs, sums, nothing);
    }
    for (int r = 0; r < R; ++r)
      store_sums<T, R>(sums + r, outputs, bias, out.row(first_row + r) + begin * BYTES);
  }

  template <int R = MAX_ROWS>
  void run(int count, Rows rows, int64_t first_row, Fetch& fetch) const {
    if (count == R) run<R>(rows, first_row, fetch);
    else if constexpr (R > 1) run<R - 1>(count, rows, first_row, fetch);
  }
};

template <DType T>
void run_all(const float* x, const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin, int64_t end,
             NextWeights next) {
  if (!out.rows) return;
  const int64_t stride = widened_floats(w.columns);
  if (pays_to_pack(out.rows, w.columns)) return run_packed<T>(x, stride, w, bias, out, begin, end, next);
  const int64_t tiles = (out.rows + MAX_ROWS - 1) / MAX_ROWS;  // as equal as they can be
  const int streams = outputs_for(static_cast<int>(out.rows / tiles));
  const int64_t fit = PANEL_BYTES / (streams * w.columns * item_bytes(T));
  const int64_t panel = streams * std::clamp<int64_t>(fit, 1, STREAM_ROWS);
  const int64_t pieces = std::max<int64_t>(1, out.rows * w.columns / tiles / TILE_FLOATS);
  // The first tile reads this panel from memory; the others ask for the next.
  const int64_t blocks = (panel / streams) * (tiles - 1) * pieces;
  for (int64_t n = begin; n < end; n += panel) {
    const bool is_last = n + panel >= end;
    const int64_t row_bytes = w.row_stride * item_bytes(T);
    Fetch fetch(is_last ? next : NextWeights{w.row(n + panel), std::min(panel, end - n - panel) * row_bytes}, blocks), none;
    const Panel<T> weights(w, bias, out, n, static_cast<int>(std::min(panel, end - n)));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = out.rows * t / tiles, last = out.rows * (t + 1) / tiles;
      weights.run(static_cast<int>(last - first), {x + first * stride, stride}, first, t ? fetch : none);
    }
  }
}

void run(const float* prepared, const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin, int64_t end,
         NextWeights next) {
#if defined(KV_ISA_amx)
  if (w.dtype == DType::bf16)
    return run_tiles(reinterpret_cast<const uint8_t*>(prepared), w, bias, out, begin, end);
#endif
  if (w.dtype == DType::f32) run_all<DType::f32>(prepared, w, bias, out, begin, end, next);
  else run_all<DType::bf16>(prepared, w, bias, out, begin, end, next);
}

bool can_gate([[maybe_unused]] int64_t rows, [[maybe_unused]] const Matrix& w) {
#if defined(KV_ISA_amx)
  return w.dtype == DType::bf16 && fits_gate(rows, w);
#else
  return false;
#endif
}

#if defined(KV_ISA_amx)
void run_gate(const float* prepared, int64_t rows, const Matrix& w, const Matrix* bias, int64_t begin, int64_t end,
              float* out) {
  run_gate(reinterpret_cast<const uint8_t*>(prepared), rows, w, bias, begin, end, reinterpret_cast<uint8_t*>(out));
}
#else
void run_gate(const float*, int64_t, const Matrix&, const Matrix*, int64_t, int64_t, float*) {}
#endif

}  // namespace

extern const ProductKernels product_kernels;
const ProductKernels product_kernels = {prepared_floats, prepare, pieces, run, can_gate, run_gate};

}  // namespace kv::KV_ISA
