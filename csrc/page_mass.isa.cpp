#include "page_mass.h"

#include "lanes.h"
#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr int SPAN = 64;  // slots scored at once
constexpr int MAX_ROWS = 4;
constexpr float NEVER = -__builtin_inff();

int64_t query_floats(const MassCall& call) { return (call.head_dim + VL - 1) / VL * VL; }

void read_queries(const MassCall& call, int head, float* q) {
  const int group = call.query_heads / call.kv_heads;
  const int64_t padded = query_floats(call), rows = call.rows();
  const int bytes = item_bytes(call.q.dtype);
  std::memset(q, 0, rows * padded * sizeof(float));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row / group * call.q.token_stride + (head * group + row % group) * call.q.head_stride;
    for (int d = 0; d < call.head_dim; ++d) {
      const uint8_t* from = call.q.data + (at + d) * bytes;
      float& to = q[row * padded + place_of(call.dtype, d, call.head_dim)];
      if (call.q.dtype == DType::f32) to = load_as<float>(from);
      else if (call.q.dtype == DType::bf16) to = from_bf16(load_as<uint16_t>(from));
      else to = from_f16(load_as<uint16_t>(from));
    }
  }
}

struct Span {  // slots of a page
  const uint8_t* keys;
  const uint8_t* following;  // as many keys that are read next, or null
  int64_t position;          // of the first one
  int count;
};

template <DType T, int R>
[[gnu::noinline]] void dots(const MassCall& call, const Span& span, const float* q, float* scores) {
  constexpr int K = power_of_two_in(VL / R), BYTES = sizeof(typename Stored<T>::item);
  const int dim = call.head_dim;
  const int64_t slot = dim * BYTES, padded = query_floats(call);
  for (int i = 0; i < span.count; i += K) {
    const uint8_t* rows[K];
    for (int k = 0; k < K; ++k) rows[k] = span.keys + (i + k < span.count ? i + k : i) * slot;
    if (span.following)
      for (int64_t at = 0; at < K * slot; at += 64) __builtin_prefetch(span.following + i * slot + at, 0, 2);
    vf sum[R * K] = {};
    int d = 0;
    for (; d + 2 * VL <= dim; d += 2 * VL) {
      vf key[K][2];
      for (int k = 0; k < K; ++k) load_two<T>(rows[k] + d * BYTES, key[k]);
      for (int half = 0; half < 2; ++half)
        for (int r = 0; r < R; ++r) {
          const vf query = load_as<vf>(q + r * padded + d + half * VL);
          for (int k = 0; k < K; ++k) sum[r * K + k] += query * key[k][half];
        }
    }
    for (; d < dim; d += VL)
      for (int k = 0; k < K; ++k) {
        const uint8_t* at = rows[k] + d * BYTES;
        const vf key = d + VL <= dim ? Stored<T>::load(at) : load_part<T>(at, dim - d);
        for (int r = 0; r < R; ++r) sum[r * K + k] += load_as<vf>(q + r * padded + d) * key;
      }
    const vf all = sums<VL / 2, R * K>(sum);
    float lanes[VL];
    std::memcpy(lanes, &all, sizeof all);
    for (int r = 0; r < R; ++r) std::memcpy(scores + r * SPAN + i, lanes + r * K, K * sizeof(float));
  }
}

// `top` and `total` of each row, in every lane and lane by lane, go on from what they are.
template <DType T, int R>
void score_span(const MassCall& call, const Span& span, int64_t first_row, const float* q, vf* top, vf* total) {
  alignas(64) float scores[R * SPAN];
  dots<T, R>(call, span, q, scores);
  const int group = call.query_heads / call.kv_heads;
  vi lane;
  for (int i = 0; i < VL; ++i) lane[i] = i;
  for (int r = 0; r < R; ++r) {
    float* row = scores + r * SPAN;
    const int64_t position = call.start + (first_row + r) / group * call.step - span.position;
    const int64_t oldest = call.window ? position - call.window + 1 : 0;
    const auto first = static_cast<int32_t>(oldest < 0 ? 0 : oldest > SPAN ? SPAN : oldest);
    const auto stop = static_cast<int32_t>(position < 0 ? 0 : position + 1 > span.count ? span.count : position + 1);
    vf highest = top[r];
    for (int i = 0; i < span.count; i += VL) {
      vf s = load_as<vf>(row + i) * splat(call.scale);
      if (call.softcap != 0) s = splat(call.softcap) * tanh(s / splat(call.softcap));
      if (first > i || stop < i + VL) s = (lane + i >= first) & (lane + i < stop) ? s : splat(NEVER);
      std::memcpy(row + i, &s, sizeof s);
      highest = max(s, highest);
    }
    highest = largest<VL / 2>(highest, std::make_integer_sequence<int, VL>());
    const vf base = highest == splat(NEVER) ? vf{} : highest;
    total[r] *= exp_negative(top[r] - base);
    for (int i = 0; i < span.count; i += VL) {
      const vf s = load_as<vf>(row + i), weight = exp_negative(s - base);
      total[r] += s == s ? weight : s;  // a NaN stays one
    }
    top[r] = highest;
  }
}

template <DType T, int R>
void score_pages(const MassCall& call, int head, int64_t page, int64_t first_row, bool reads_first, const float* q,
                 float* tops, float* totals) {
  const int64_t slot = call.head_dim * sizeof(typename Stored<T>::item), at = head * 2 * call.page_size * slot;
  const auto keys_of = [&](int64_t p) { return reinterpret_cast<const uint8_t*>(call.addresses[p]) + at; };
  const bool fetches = reads_first && page + 1 < call.num_pages;
  vf top[R], total[R] = {};
  for (int r = 0; r < R; ++r) top[r] = splat(NEVER);
  for (int i = 0; i < call.page_size; i += SPAN) {
    const int count = call.page_size - i < SPAN ? call.page_size - i : SPAN;
    const Span span{keys_of(page) + i * slot, fetches ? keys_of(page + 1) + i * slot : nullptr,
                    call.positions[page] + i, count};
    score_span<T, R>(call, span, first_row, q, top, total);
  }
  for (int r = 0; r < R; ++r) {
    tops[r * call.page_stride() + page] = top[r][0];
    totals[r * call.page_stride() + page] = sum(total[r]);
  }
}

template <DType T>
void score_all(const MassCall& call, int head, int64_t first, int64_t stop, const float* q, float* tops, float* totals) {
  using Score = void (*)(const MassCall&, int, int64_t, int64_t, bool, const float*, float*, float*);
  static constexpr Score by_rows[] = {score_pages<T, 1>, score_pages<T, 2>, score_pages<T, 3>, score_pages<T, 4>};
  const int64_t rows = call.rows(), padded = query_floats(call);
  for (int64_t page = first; page < stop; ++page)
    for (int64_t row = 0; row < rows; row += MAX_ROWS) {
      const int64_t count = rows - row < MAX_ROWS ? rows - row : MAX_ROWS, at = row * call.page_stride();
      by_rows[count - 1](call, head, page, row, row == 0, q + row * padded, tops + at, totals + at);
    }
}

void score(const MassCall& call, int head, int64_t first, int64_t stop, const float* q, float* tops, float* totals) {
  switch (call.dtype) {
    case DType::f32: return score_all<DType::f32>(call, head, first, stop, q, tops, totals);
    case DType::bf16: return score_all<DType::bf16>(call, head, first, stop, q, tops, totals);
    default: return score_all<DType::f16>(call, head, first, stop, q, tops, totals);
  }
}

void sum_rows(const MassCall& call, const float* tops, float* totals, float* masses) {
  const int64_t stride = call.page_stride();
  std::memset(masses, 0, stride * sizeof(float));
  for (int64_t row = 0; row < call.rows(); ++row, tops += stride, totals += stride) {
    float top = NEVER;
    for (int64_t p = 0; p < call.num_pages; ++p) top = tops[p] > top ? tops[p] : top;
    const vf base = splat(top == NEVER ? 0 : top);
    vf all = {};
    for (int64_t p = 0; p < stride; p += VL) {
      vf mass = load_as<vf>(totals + p) * exp_negative(load_as<vf>(tops + p) - base);
      all += mass;
      std::memcpy(totals + p, &mass, sizeof mass);
    }
    const float total = sum(all);
    const vf share = splat(total == 0 ? 0 : 1 / total);
    for (int64_t p = 0; p < stride; p += VL) {
      const vf mass = load_as<vf>(masses + p) + load_as<vf>(totals + p) * share;
      std::memcpy(masses + p, &mass, sizeof mass);
    }
  }
}

}  // namespace

extern const MassKernels mass_kernels;
const MassKernels mass_kernels = {query_floats, read_queries, score, sum_rows};

}  // namespace kv::KV_ISA
