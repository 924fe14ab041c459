#include "decode.h"

#include <utility>

#include "decode_products.h"
#include "decode_tile.h"
#include "decode_tiles.h"
#include "lanes.h"
#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr float NEVER = -__builtin_inff();

// -- one tile of one KV head, R rows ----------------------------------------------------------------------------------

struct Head {  // one KV head's part of a tile, for some rows
  const AttentionCall* call;
  Shape shape;
  const Tile* tile;
  int head;
  const int64_t* positions;  // [rows] of the queries
  const float* q;            // [rows][padded]; for tiles, where the first row's column lies
  int64_t num_rows;          // of the share
  float* state;              // [rows][shape.state]
  Ahead keys, values;
};

// One row's scores become weights, given to `put` by vectors, which returns what is to be summed of them: what the row's
// state has so far shrinks by what is returned. `scale`: of keys, where they are quantized.
template <class Exp, class Put>
inline vf soften(const Head& work, int r, float* row, const float* scale, Exp exp, Put put) {
  const AttentionCall& call = *work.call;
  const Tile& tile = *work.tile;
  const int rounded = (tile.count + VL - 1) / VL * VL;
  float* state = work.state + r * work.shape.state + work.shape.padded;
  const int64_t position = work.positions[r] - tile.start;
  const int64_t window = call.pages->window, oldest = window ? position - window + 1 : 0;
  const bool sees_all = tile.count == rounded && tile.position[rounded - 1] <= position && tile.position[0] >= oldest;
  const int32_t first = static_cast<int32_t>(oldest < 0 ? 0 : oldest > TILE ? TILE : oldest);
  const int32_t last = static_cast<int32_t>(position < 0 ? -1 : position > TILE ? TILE : position);
  vf top = load_as<vf>(state + VL);
  for (int i = 0; i < rounded; i += VL) {
    vf s = load_as<vf>(row + i) * splat(call.scale);
    if (scale) s *= load_as<vf>(scale + i);
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
  const vf shrink = exp_negative(load_as<vf>(state + VL) - base);
  vf sum = load_as<vf>(state) * shrink;
  for (int i = 0; i < rounded; i += VL) {
    const vf s = load_as<vf>(row + i);
    const vf weight = exp(s - base);
    sum += put(i, s == s ? weight : s);  // a NaN stays one
  }
  std::memcpy(state, &sum, sizeof sum);
  std::memcpy(state + VL, &top, sizeof top);
  return shrink;
}

template <DType T, int R>
void attend(const Head& work, int) {
  const AttentionCall& call = *work.call;
  const Tile& tile = *work.tile;
  const Shape& shape = work.shape;
  const uint8_t* keys = call.cache.base + work.head * call.cache.head_stride;
  alignas(64) float scores[R * TILE];
  alignas(64) float scale[2][TILE];
  score<T, R>(keys, tile, shape, work.q, scores, work.keys);
  if constexpr (is_quantized(T))
    for (int i = 0; i < (tile.count + VL - 1) / VL * VL; ++i)
      for (int half = 0; half < 2; ++half)
        scale[half][i] = load_as<float>(call.cache.scales + tile.block[i] + (work.head * 2 + half) * sizeof(float));
  vf shrink[R];
  for (int r = 0; r < R; ++r) {
    float* const row = scores + r * TILE;
    shrink[r] = soften(work, r, row, is_quantized(T) ? scale[0] : nullptr, exp_negative, [&](int i, vf weight) {
      const vf scaled = is_quantized(T) ? weight * load_as<vf>(scale[1] + i) : weight;
      std::memcpy(row + i, &scaled, sizeof scaled);
      return weight;
    });
  }
  weigh_all<T, R, power_of_two_in(ACCUMULATORS / R)>(keys + call.cache.half_stride, tile, shape, 0, scores, shrink,
                                                     work.state, work.values);
}

#if defined(KV_ISA_amx)
template <int ROWS>
void attend_tiles(const Head& work, int rows) {
  const AttentionCall& call = *work.call;
  const Tile& tile = *work.tile;
  const Shape& shape = work.shape;
  const uint8_t* const keys = call.cache.base + work.head * call.cache.head_stride;
  const int64_t row_bytes = shape.dim * 2;
  alignas(64) float scores[ROWS * TILE];
  alignas(64) uint32_t weights[2 * ROWS * TILE];  // of rows that are not there: whatever is in memory, and adds to nothing
  alignas(64) uint8_t copies[TILE * MOST_DIMS * 2];
  score_tiles<ROWS>(lines_of(keys, tile, call.cache.slot_stride, row_bytes, copies), tile, shape.dim, work.q,
                    line_dwords(work.num_rows), rows, scores, work.keys);
  vf shrink[ROWS];
  for (int r = 0; r < rows; ++r)
    shrink[r] = soften(work, r, scores + r * TILE, nullptr, exp_for_bf16,
                       [&](int i, vf weight) { return put_weights<ROWS>(weight, weights + r * TILE + i); });
  weigh_tiles<ROWS>(lines_of(keys + call.cache.half_stride, tile, call.cache.slot_stride, row_bytes, copies), tile, shape,
                    weights, rows, shrink, work.state, work.values);
}
#endif

using Attend = void (*)(const Head&, int rows);

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

Attend attend_for(const AttentionCall& call, int rows) {
#if defined(KV_ISA_amx)
  if (fits_tiles(call)) return rows <= FEW ? attend_tiles<FEW> : attend_tiles<TILE_ROWS>;
#endif
  switch (call.cache.dtype) {
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
  int d = 0;
  if (call.q.dtype == DType::bf16 && call.cache.dtype == DType::bf16)  // whole groups at once
    for (; d + 2 * VL <= shape.dim; d += 2 * VL) {
      vf both[2];
      load_two<DType::bf16>(from + d * 2, both);
      std::memcpy(to + d, both, sizeof both);
    }
  for (; d < shape.dim; ++d) {
    float& element = to[place_of(call.cache.dtype, d, shape.dim)];
    if (call.q.dtype == DType::f32) element = load_as<float>(from + d * 4);
    else if (call.q.dtype == DType::bf16) element = from_bf16(load_as<uint16_t>(from + d * 2));
    else element = from_f16(load_as<uint16_t>(from + d * 2));
  }
}

void write_row(const AttentionCall& call, const Shape& shape, const float* from, float factor, uint8_t* to) {
  const DType dtype = call.out.dtype;
  int d = 0;
  if (dtype == DType::bf16 && call.cache.dtype == DType::bf16)  // as above
    for (; d + 2 * VL <= shape.dim; d += 2 * VL)
      store_two_bf16(to + d * 2, load_as<vf>(from + d) * factor, load_as<vf>(from + d + VL) * factor);
  for (; d < shape.dim; ++d) {
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

// `states`: of an item's rows, [num_heads][num_queries][group]; those of one head `head_rows` behind the last one's.
void write_results(const AttentionCall& call, const DecodeItem& item, const float* states, int64_t head_rows) {
  const Shape shape = shape_of(call);
  const int group = call.query_heads / call.cache.kv_heads;
  for (int h = 0; h < item.num_heads; ++h)
    for (int64_t i = 0; i < item.num_queries * group; ++i)
      write_result(call, shape, item.first_query + i / group, static_cast<int>((item.first_head + h) * group + i % group),
                   states + (h * head_rows + i) * shape.state);
}

void clear(float* states, int64_t rows, const Shape& shape) {
  std::memset(states, 0, rows * shape.state * sizeof(float));
  for (int64_t i = 0; i < rows; ++i)
    for (int lane = 0; lane < VL; ++lane) states[i * shape.state + shape.padded + VL + lane] = NEVER;
}

// -- the kernels ------------------------------------------------------------------------------------------------------

int64_t state_floats(const AttentionCall& call) { return shape_of(call).state; }

struct ShareRows {  // [heads][rows of all items]: what a share computes with
  int64_t num_rows;    // of one head
  int64_t* positions;  // [num_rows]
  float* q;            // [heads][q_floats]: [num_rows][shape.padded], or as decode_tiles.h has them
  int64_t q_floats;
  float* states;       // [heads][num_rows][shape.state]
};

// In the scratch of the thread.
ShareRows rows_of_share(const AttentionCall& call, const DecodeShare& share, const Shape& shape, int group) {
  const int heads = share.items[0].num_heads;
  ShareRows rows{};
  for (int64_t i = 0; i < share.count; ++i) rows.num_rows += share.items[i].num_queries * group;
  rows.q_floats = fits_tiles(call) ? query_floats(rows.num_rows, shape.dim) : rows.num_rows * shape.padded;
  const int64_t all = heads * rows.num_rows, ends = (all * shape.state + 15) / 16 * 16;
  float* const scratch = thread_scratch(ends + heads * rows.q_floats + 16 + 4 * rows.num_rows);
  rows.states = scratch;
  rows.q = scratch + ends;
  rows.positions = reinterpret_cast<int64_t*>(rows.q + heads * rows.q_floats + 16);
  const auto** const from = reinterpret_cast<const uint8_t**>(rows.positions + rows.num_rows);
  clear(rows.states, all, shape);
  int64_t row = 0;
  for (int64_t i = 0; i < share.count; ++i) {
    const DecodeItem& item = share.items[i];
    const int64_t first = call.pages->starts[item.sequence] + item.first_query - call.pages->query_offsets[item.sequence];
    for (int64_t of_item = 0; of_item < item.num_queries * group; ++of_item, ++row) {
      rows.positions[row] = first + of_item / group;
      from[row] = row_of(call.q, item.first_query + of_item / group, item.first_head * group + of_item % group);
    }
  }
  for (int h = 0; h < heads; ++h) {
    const int64_t offset = h * group * call.q.head_stride * item_bytes(call.q.dtype);
    float* const q = rows.q + h * rows.q_floats;
    if (fits_tiles(call)) turn_queries(from, offset, rows.num_rows, shape.dim, q);
    else
      for (row = 0; row < rows.num_rows; ++row) read_row(call, shape, from[row] + offset, q + row * shape.padded);
  }
  return rows;
}

// Results, or the states for `merge`.
void hand_over(const AttentionCall& call, const DecodeShare& share, const Shape& shape, int group, const ShareRows& rows,
               float* partials) {
  int64_t row = 0;
  for (int64_t i = 0; i < share.count; ++i) {
    const DecodeItem& item = share.items[i];
    const int64_t of_item = item.num_queries * group;
    const float* const states = rows.states + row * shape.state;
    row += of_item;
    if (item.partial < 0) {
      write_results(call, item, states, rows.num_rows);
      continue;
    }
    for (int h = 0; h < item.num_heads; ++h)
      std::memcpy(partials + (item.partial + h * of_item) * shape.state, states + h * rows.num_rows * shape.state,
                  of_item * shape.state * sizeof(float));
  }
}

void run_shared(const AttentionCall& call, const DecodeShare& share, float* partials) {
  const Shape shape = shape_of(call);
  const CacheLayer& cache = call.cache;
  const int group = call.query_heads / cache.kv_heads, heads = share.items[0].num_heads;
  const int first_head = share.items[0].first_head;
  const ShareRows rows = rows_of_share(call, share, shape, group);
  const int64_t row_bytes = shape.dim * item_bytes(cache.dtype);
  Steps walk(call, share, group);
  Step steps[2];
  bool more = walk.next(steps[0]);
  const bool has_tiles = fits_tiles(call);
  const int64_t most = has_tiles ? TILE_ROWS : MAX_ROWS;
  const int64_t q_apart = has_tiles ? 1 : shape.padded;  // floats from one row to the next
  bool is_wide = false;
  if (has_tiles) begin_decode_tiles(1);
  for (int now = 0; more; now ^= 1) {
    more = walk.next(steps[now ^ 1]);
    const Step& step = steps[now];
    const int64_t parts = (step.num_rows + most - 1) / most, at_once = has_tiles ? most : (step.num_rows + parts - 1) / parts;
    for (int h = 0; h < heads; ++h) {
      const bool is_last = h + 1 == heads;
      const Tile& following = steps[is_last && more ? now ^ 1 : now].tile;
      const int head = first_head + (!is_last ? h + 1 : more ? 0 : h);
      Ahead ahead{cache.base + head * cache.head_stride, following.row, row_bytes};
      for (int64_t done = 0; done < step.num_rows; done += at_once) {
        const int count = static_cast<int>(step.num_rows - done < at_once ? step.num_rows - done : at_once);
        const int64_t row = step.first_row + done;
        if (has_tiles && is_wide != count > FEW) is_wide = !is_wide, begin_decode_tiles(count);
        const Ahead values{ahead.base + cache.half_stride, ahead.row, ahead.bytes};
        attend_for(call, count)({&call, shape, &step.tile, first_head + h, rows.positions + row,
                                 rows.q + h * rows.q_floats + row * q_apart, rows.num_rows,
                                 rows.states + (h * rows.num_rows + row) * shape.state, ahead, values}, count);
        ahead.bytes = 0;
      }
    }
  }
  if (has_tiles) end_tiles();
  hand_over(call, share, shape, group, rows, partials);
}

void run(const AttentionCall& call, const DecodeItem& item, float* partials) {
  run_shared(call, {&item, 1, item.first_key}, partials);
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
  write_results(call, merge.item, states, rows);
}

}  // namespace

extern const DecodeKernels decode_kernels;
const DecodeKernels decode_kernels = {state_floats, run, run_shared, merge};

}  // namespace kv::KV_ISA
