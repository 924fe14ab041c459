#include "decode.h"

#include <utility>

#include "lanes.h"
#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr int TILE = 128;  // keys scored at once; tiles begin at multiples of it, wherever a span begins
constexpr int MAX_ROWS = VL < 8 ? 4 : VL < 16 ? 6 : 8;
constexpr int ACCUMULATORS = VL < 16 ? 12 : 24;  // vector registers that hold sums: at least two of each row
constexpr float NEVER = -__builtin_inff();

struct Tile {
  int count;             // keys
  int64_t start;         // position of the tile
  int64_t row[TILE];     // byte offset of a key's row of head 0; behind the last key: its row again
  int64_t block[TILE];   // byte offset of a key's block
  int32_t position[TILE];  // from `start`; behind the last key: far away
};

class Walk {  // over the page list of a sequence, tile by tile
 public:
  Walk(const AttentionCall& call, const DecodeItem& item) : cache_(call.cache), pages_(*call.pages), item_(item) {
    entry_ = pages_.table_offsets[item.sequence];
    end_ = pages_.table_offsets[item.sequence + 1];
    shift_ = pages_.first_pages[item.sequence] - entry_;
    const int64_t first = item.first_key / cache_.page_size;
    if (!pages_.pages) {
      entry_ = first - shift_;
    } else {
      for (int64_t high = end_; entry_ < high;) {
        const int64_t middle = entry_ + (high - entry_) / 2;
        if (pages_.pages[middle] < first) entry_ = middle + 1;
        else high = middle;
      }
    }
    start_ = item.first_key / TILE * TILE;
  }

  bool next(Tile& tile) {  // the next tile that holds keys
    tile.count = 0;
    while (!tile.count && start_ < item_.stop_key && entry_ < end_) fill(tile);
    if (!tile.count) return false;
    for (int i = tile.count; i < TILE; ++i) {
      tile.row[i] = tile.row[tile.count - 1];
      tile.block[i] = tile.block[tile.count - 1];
      tile.position[i] = INT32_MAX;
    }
    return true;
  }

 private:
  void fill(Tile& tile) {
    const int64_t page_size = cache_.page_size;
    const int64_t first = start_ > item_.first_key ? start_ : item_.first_key;
    const int64_t stop = start_ + TILE < item_.stop_key ? start_ + TILE : item_.stop_key;
    tile.start = start_;
    for (; entry_ < end_; ++entry_) {
      const int64_t begin = (pages_.pages ? pages_.pages[entry_] : entry_ + shift_) * page_size;
      const int64_t from = begin > first ? begin : first, to = begin + page_size < stop ? begin + page_size : stop;
      const int64_t block = pages_.place(entry_, cache_.block_stride);
      for (int64_t at = from; at < to; ++at, ++tile.count) {
        tile.row[tile.count] = block + (at - begin) * cache_.slot_stride;
        tile.block[tile.count] = block;
        tile.position[tile.count] = static_cast<int32_t>(at - start_);
      }
      if (begin + page_size > stop) break;  // goes on in the next tile
    }
    start_ += TILE;
  }

  const CacheLayer& cache_;
  const Pages& pages_;
  const DecodeItem& item_;
  int64_t entry_, end_, shift_, start_;
};

struct Ahead {  // what is prefetched while something else is computed
  const uint8_t* base;
  const int64_t* row;
  int64_t bytes;

  void fetch(int key) const {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(base + row[key] + at, 0, 2);
  }
};

// -- one tile of one KV head, R rows ----------------------------------------------------------------------------------

struct Shape {
  int dim, padded;       // elements of a row; rounded up to whole vectors
  int64_t state;         // floats of a row's state: padded values, then a vector each of weight sums and of the largest score
};

inline Shape shape_of(const AttentionCall& call) {
  const int dim = call.cache.head_dim, padded = (dim + VL - 1) / VL * VL;
  return {dim, padded, padded + 2 * VL};
}

// Apart from their callers, which leave too few registers: a sum in memory halves the speed.
template <DType T, int R>
[[gnu::noinline]] void score(const uint8_t* keys, const Tile& tile, const Shape& shape, const float* q, float* scores,
                             Ahead ahead) {
  constexpr int K = power_of_two_in(VL / R);
  constexpr int BYTES = sizeof(typename Stored<T>::item);
  for (int i = 0; i < tile.count; i += K) {
    const uint8_t* rows[K];
    for (int k = 0; k < K; ++k) rows[k] = keys + tile.row[i + k];
    for (int k = 0; k < K; ++k) ahead.fetch(i + k);
    vf sum[R * K] = {};
    int d = 0;
    for (; d + 2 * VL <= shape.dim; d += 2 * VL) {
      vf key[K][2];
      for (int k = 0; k < K; ++k) load_two<T>(rows[k] + d * BYTES, key[k]);
      for (int half = 0; half < 2; ++half)
        for (int r = 0; r < R; ++r) {
          const vf query = load_as<vf>(q + r * shape.padded + d + half * VL);
          for (int k = 0; k < K; ++k) sum[r * K + k] += query * key[k][half];
        }
    }
    for (; d < shape.dim; d += VL)
      for (int k = 0; k < K; ++k) {
        const uint8_t* at = rows[k] + d * BYTES;
        const vf key = d + VL <= shape.dim ? Stored<T>::load(at) : load_part<T>(at, shape.dim - d);
        for (int r = 0; r < R; ++r) sum[r * K + k] += load_as<vf>(q + r * shape.padded + d) * key;
      }
    const vf all = sums<VL / 2, R * K>(sum);
    float lanes[VL];
    std::memcpy(lanes, &all, sizeof all);
    for (int r = 0; r < R; ++r) std::memcpy(scores + r * TILE + i, lanes + r * K, K * sizeof(float));
  }
}

template <DType T, int R, int N>  // N vectors of sums; `part`: 0, or the elements that count of the only one
[[gnu::noinline]] void weigh(const uint8_t* values, const Tile& tile, int part, const float* weights, const vf* shrink,
                             float* sums, int64_t state, Ahead ahead) {
  vf sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = load_as<vf>(sums + r * state + n * VL) * shrink[r];
  for (int i = 0; i < tile.count; ++i) {
    const uint8_t* row = values + tile.row[i];
    ahead.fetch(i);
    vf weight[R];
    for (int r = 0; r < R; ++r) weight[r] = splat(weights[r * TILE + i]);
    if constexpr (N == 1) {
      const vf value = part ? load_part<T>(row, part) : Stored<T>::load(row);
      for (int r = 0; r < R; ++r) sum[r][0] += weight[r] * value;
    } else {
      for (int n = 0; n < N; n += 2) {  // two at a time, so that all fits in registers
        vf value[2];
        load_two<T>(row + n * VL * sizeof(typename Stored<T>::item), value);
        for (int r = 0; r < R; ++r)
          for (int half = 0; half < 2; ++half) sum[r][n + half] += weight[r] * value[half];
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) std::memcpy(sums + r * state + n * VL, &sum[r][n], sizeof(vf));
}

template <DType T, int R, int N>
void weigh_all(const uint8_t* values, const Tile& tile, const Shape& shape, int d, const float* weights,
               const vf* shrink, float* sums, Ahead ahead) {
  constexpr int BYTES = sizeof(typename Stored<T>::item);
  for (; d + N * VL <= shape.dim; d += N * VL, ahead.bytes = 0)
    weigh<T, R, N>(values + d * BYTES, tile, 0, weights, shrink, sums + d, shape.state, ahead);
  if constexpr (N > 1)
    weigh_all<T, R, N / 2>(values, tile, shape, d, weights, shrink, sums, ahead);
  else if (d < shape.dim)
    weigh<T, R, 1>(values + d * BYTES, tile, shape.dim - d, weights, shrink, sums + d, shape.state, ahead);
}

struct Head {  // one KV head's part of a tile, for some rows
  const AttentionCall* call;
  Shape shape;
  const Tile* tile;
  int head;
  int64_t first_row;       // of the rows [num_queries][group] of the head
  int64_t first_position;  // of the item's first query
  const float* q;          // [rows][padded]
  float* state;            // [rows][shape.state]
  Ahead keys, values;
};

template <DType T, int R>
void attend(const Head& work) {
  const AttentionCall& call = *work.call;
  const Tile& tile = *work.tile;
  const Shape& shape = work.shape;
  const int group = call.query_heads / call.cache.kv_heads, rounded = (tile.count + VL - 1) / VL * VL;
  const uint8_t* keys = call.cache.base + work.head * call.cache.head_stride;
  alignas(64) float scores[R * TILE];
  alignas(64) float scale[2][TILE];
  score<T, R>(keys, tile, shape, work.q, scores, work.keys);
  if constexpr (is_quantized(T))
    for (int i = 0; i < rounded; ++i)
      for (int half = 0; half < 2; ++half)
        scale[half][i] = load_as<float>(call.cache.scales + tile.block[i] + (work.head * 2 + half) * sizeof(float));
  vf shrink[R];
  for (int r = 0; r < R; ++r) {
    float* row = scores + r * TILE;
    float* state = work.state + r * shape.state + shape.padded;
    const int64_t position = work.first_position + (work.first_row + r) / group - tile.start;
    const int64_t window = call.pages->window, oldest = window ? position - window + 1 : 0;
    const bool sees_all = tile.count == rounded && tile.position[rounded - 1] <= position && tile.position[0] >= oldest;
    const int32_t first = static_cast<int32_t>(oldest < 0 ? 0 : oldest > TILE ? TILE : oldest);
    const int32_t last = static_cast<int32_t>(position < 0 ? -1 : position > TILE ? TILE : position);
    vf top = load_as<vf>(state + VL);
    for (int i = 0; i < rounded; i += VL) {
      vf s = load_as<vf>(row + i) * splat(call.scale);
      if constexpr (is_quantized(T)) s *= load_as<vf>(scale[0] + i);
      if (call.softcap != 0) s = splat(call.softcap) * tanh(s / splat(call.softcap));
      if (!sees_all) {
        const vi at = load_as<vi>(tile.position + i);
        s = (at >= first) & (at <= last) ? s : splat(NEVER);
      }
      std::memcpy(row + i, &s, sizeof s);
      top = max(s, top);
    }
    top = largest<VL / 2>(top, std::make_integer_sequence<int, VL>());
    const vf base = top == splat(NEVER) ? vf{} : top;
    shrink[r] = exp_negative(load_as<vf>(state + VL) - base);
    vf sum = load_as<vf>(state) * shrink[r];
    for (int i = 0; i < rounded; i += VL) {
      const vf s = load_as<vf>(row + i);
      vf weight = exp_negative(s - base);
      weight = s == s ? weight : s;  // a NaN stays one
      sum += weight;
      if constexpr (is_quantized(T)) weight *= load_as<vf>(scale[1] + i);
      std::memcpy(row + i, &weight, sizeof weight);
    }
    std::memcpy(state, &sum, sizeof sum);
    std::memcpy(state + VL, &top, sizeof top);
  }
  weigh_all<T, R, power_of_two_in(ACCUMULATORS / R)>(keys + call.cache.half_stride, tile, shape, 0, scores, shrink,
                                                     work.state, work.values);
}

using Attend = void (*)(const Head&);

template <DType T>
Attend attend_rows(int rows) {
  static constexpr Attend by_rows[] = {
      attend<T, 1>, attend<T, 2>, attend<T, 3>, attend<T, 4>,
#if KV_VBYTES > 16
      attend<T, 5>, attend<T, 6>,
#endif
#if KV_VBYTES > 32
      attend<T, 7>, attend<T, 8>,
#endif
  };
  return by_rows[rows - 1];
}

Attend attend_for(DType dtype, int rows) {
  switch (dtype) {
    case DType::f32: return attend_rows<DType::f32>(rows);
    case DType::bf16: return attend_rows<DType::bf16>(rows);
    case DType::f16: return attend_rows<DType::f16>(rows);
    case DType::i8: return attend_rows<DType::i8>(rows);
    default: return attend_rows<DType::f8e4m3>(rows);
  }
}

// -- rows of activations ----------------------------------------------------------------------------------------------

uint8_t* row_of(const Rows& rows, int64_t token, int64_t head) {
  return rows.data + (token * rows.token_stride + head * rows.head_stride) * item_bytes(rows.dtype);
}

void read_row(const AttentionCall& call, const Shape& shape, const uint8_t* from, float* to) {
  std::memset(to, 0, shape.padded * sizeof(float));
  for (int d = 0; d < shape.dim; ++d) {
    float& element = to[place_of(call.cache.dtype, d, shape.dim)];
    if (call.q.dtype == DType::f32) element = load_as<float>(from + d * 4);
    else if (call.q.dtype == DType::bf16) element = from_bf16(load_as<uint16_t>(from + d * 2));
    else element = from_f16(load_as<uint16_t>(from + d * 2));
  }
}

void write_row(const AttentionCall& call, const Shape& shape, const float* from, float factor, uint8_t* to) {
  const DType dtype = call.out.dtype;
  for (int d = 0; d < shape.dim; ++d) {
    const float value = from[place_of(call.cache.dtype, d, shape.dim)] * factor;
    const uint16_t half = dtype == DType::bf16 ? to_bf16(value) : to_f16(value);
    std::memcpy(to + d * item_bytes(dtype), dtype == DType::f32 ? static_cast<const void*>(&value) : &half,
                item_bytes(dtype));
  }
}

void write_result(const AttentionCall& call, const Shape& shape, int64_t token, int head, const float* state) {
  const vf sums = load_as<vf>(state + shape.padded);
  float top = state[shape.padded + VL], total = sum(sums), factor = 1;
  if (call.sinks) {
    const float sink = call.sinks[head], base = top > sink ? top : sink;
    if (base != NEVER) {
      factor = top == NEVER ? 0 : __builtin_expf(top - base);
      total = total * factor + __builtin_expf(sink - base);
      top = base;
    }
  }
  const bool sees_nothing = total == 0;
  write_row(call, shape, state, sees_nothing ? 0 : factor / total, row_of(call.out, token, head));
  if (call.lse) call.lse[token * call.query_heads + head] = sees_nothing ? NEVER : top + __builtin_logf(total);
}

void write_results(const AttentionCall& call, const DecodeItem& item, const float* states) {
  const Shape shape = shape_of(call);
  const int group = call.query_heads / call.cache.kv_heads;
  const int64_t rows = item.num_queries * group;
  for (int64_t i = 0; i < item.num_heads * rows; ++i)
    write_result(call, shape, item.first_query + i % rows / group,
                 static_cast<int>((item.first_head + i / rows) * group + i % group), states + i * shape.state);
}

void clear(float* states, int64_t rows, const Shape& shape) {
  std::memset(states, 0, rows * shape.state * sizeof(float));
  for (int64_t i = 0; i < rows; ++i)
    for (int lane = 0; lane < VL; ++lane) states[i * shape.state + shape.padded + VL + lane] = NEVER;
}

// -- the kernels ------------------------------------------------------------------------------------------------------

int64_t state_floats(const AttentionCall& call) { return shape_of(call).state; }

void run(const AttentionCall& call, const DecodeItem& item, float* partials) {
  const Shape shape = shape_of(call);
  const CacheLayer& cache = call.cache;
  const int group = call.query_heads / cache.kv_heads;
  const int64_t rows = item.num_queries * group, all = rows * item.num_heads;
  float* q = thread_scratch(all * (shape.padded + (item.partial < 0 ? shape.state : 0)));
  float* states = item.partial < 0 ? q + all * shape.padded : partials + item.partial * shape.state;
  for (int64_t i = 0; i < all; ++i)
    read_row(call, shape,
             row_of(call.q, item.first_query + i % rows / group, (item.first_head + i / rows) * group + i % group),
             q + i * shape.padded);
  clear(states, all, shape);
  const int64_t row_bytes = shape.dim * item_bytes(cache.dtype);
  const int64_t row_tiles = (rows + MAX_ROWS - 1) / MAX_ROWS, rows_at_once = (rows + row_tiles - 1) / row_tiles;
  const int64_t before = item.first_query - call.pages->query_offsets[item.sequence];
  Walk walk(call, item);
  Tile tiles[2];
  bool more = walk.next(tiles[0]);
  for (int now = 0; more; now ^= 1) {
    more = walk.next(tiles[now ^ 1]);
    for (int h = 0; h < item.num_heads; ++h) {
      const bool is_last = h + 1 == item.num_heads;
      const Tile& following = tiles[is_last && more ? now ^ 1 : now];
      const int head = item.first_head + (!is_last ? h + 1 : more ? 0 : h);
      Ahead ahead{cache.base + head * cache.head_stride, following.row, row_bytes};
      for (int64_t row = 0; row < rows; row += rows_at_once) {
        const int count = static_cast<int>(rows - row < rows_at_once ? rows - row : rows_at_once);
        const Ahead values{ahead.base + cache.half_stride, ahead.row, ahead.bytes};
        attend_for(cache.dtype, count)({&call, shape, &tiles[now], item.first_head + h, row,
                                        call.pages->starts[item.sequence] + before,
                                        q + (h * rows + row) * shape.padded, states + (h * rows + row) * shape.state,
                                        ahead, values});
        ahead.bytes = 0;
      }
    }
  }
  if (item.partial < 0) write_results(call, item, states);
}

void merge(const AttentionCall& call, const DecodeMerge& merge, const float* partials) {
  const Shape shape = shape_of(call);
  const int64_t rows = merge.item.num_queries * (call.query_heads / call.cache.kv_heads);
  float* states = thread_scratch(rows * shape.state);
  clear(states, rows, shape);
  for (int64_t row = 0; row < rows; ++row) {
    float* state = states + row * shape.state;
    const float* first = partials + (merge.item.partial + row) * shape.state;
    float top = NEVER;
    for (int64_t i = 0; i < merge.num_pieces; ++i) {
      const float found = first[i * merge.piece_rows * shape.state + shape.padded + VL];
      top = found > top ? found : top;
    }
    for (int64_t i = 0; i < merge.num_pieces; ++i) {
      const float* piece = first + i * merge.piece_rows * shape.state;
      const vf weight = exp_negative(load_as<vf>(piece + shape.padded + VL) - splat(top == NEVER ? 0 : top));
      for (int d = 0; d < shape.padded + VL; d += VL) {
        const vf sum = load_as<vf>(state + d) + load_as<vf>(piece + d) * weight;
        std::memcpy(state + d, &sum, sizeof sum);
      }
    }
    for (int lane = 0; lane < VL; ++lane) state[shape.padded + VL + lane] = top;
  }
  write_results(call, merge.item, states);
}

}  // namespace

extern const DecodeKernels decode_kernels;
const DecodeKernels decode_kernels = {state_floats, run, merge};

}  // namespace kv::KV_ISA
