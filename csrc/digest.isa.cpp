#include "digest.h"

#include "store.h"

namespace kv::KV_ISA {
namespace {

constexpr int MAX_DIM = 256;
constexpr int SUBS = DIGEST_PAGES / VL;   // vectors of pages in a tile
constexpr int MAX_ROWS = VL < 16 ? 4 : 8;  // query heads at once: two sums each
constexpr float SLACK = 0x1p-17f;         // of a key's size: more than what summing up in floats loses
constexpr float LEAST = 1e-37f;           // a scale's inverse must be finite
constexpr float CAP = 1e30f;              // bounds are finite; what is no number is above all others

inline vf magnitude(vf v) { return bits<vf>(bits<vi>(v) & 0x7fffffff); }

inline vf min(vf a, vf b) { return a < b ? a : b; }

inline float largest_lane(vf v) {
  float found = v[0];
  for (int i = 1; i < VL; ++i) found = v[i] > found ? v[i] : found;
  return found;
}

template <DType T>
inline vf load_some(const uint8_t* row, int d, int dim) {
  constexpr int BYTES = sizeof(typename Stored<T>::item);
  return d + VL <= dim ? Stored<T>::load(row + d * BYTES) : load_part<T>(row + d * BYTES, dim - d);
}

template <DType T>
void update_as(const DigestTable& table, const PageKeys& keys, int64_t page, int head) {
  const int dim = table.head_dim;
  alignas(64) float centres[MAX_DIM], lows[MAX_DIM], highs[MAX_DIM];
  const vf share = splat(1.0f / keys.page_size);
  vf largest_centre{}, poison{};
  for (int d = 0; d < dim; d += VL) {
    vf low = load_some<T>(keys.rows, d, dim), high = low, centre{};
    for (int i = 0; i < keys.page_size; ++i) {
      const vf key = load_some<T>(keys.rows + i * keys.slot_stride, d, dim);
      low = min(key, low);
      high = max(key, high);
      centre += key * share;
      poison += key * vf{};  // NaN from the first key on that is not finite
    }
    largest_centre = max(magnitude(centre), largest_centre);
    std::memcpy(centres + d, &centre, sizeof centre);
    std::memcpy(lows + d, &low, sizeof low);
    std::memcpy(highs + d, &high, sizeof high);
  }
  const bool is_finite = sum(poison) == 0;
  const float centre_scale = is_finite ? largest_lane(largest_centre) * (1.0f / 127) + LEAST : 0;
  const vf to_code = splat(is_finite ? 1.0f / centre_scale : 0);
  vf largest_radius{};
  for (int d = 0; d < dim; d += VL) {
    const vf shifted = load_as<vf>(centres + d) * to_code + splat(0x1.8p23f);  // to nearest, by a large addend
    const vf code = shifted - splat(0x1.8p23f), centre = code * splat(centre_scale);
    const vf up = load_as<vf>(highs + d) - centre, down = centre - load_as<vf>(lows + d);
    const vf farthest = max(up, down);
    const vf radius = farthest + (farthest + magnitude(centre)) * splat(SLACK);
    largest_radius = max(radius, largest_radius);
    std::memcpy(centres + d, &code, sizeof code);
    std::memcpy(highs + d, &radius, sizeof radius);
  }
  const float radius_scale = is_finite ? largest_lane(largest_radius) * (1.000001f / 255) + LEAST : __builtin_inff();
  const float inverse = 1.0f / radius_scale;
  int8_t centre_codes[MAX_DIM] = {};
  uint8_t radius_codes[MAX_DIM] = {};
  for (int d = 0; d < dim; ++d) {
    centre_codes[d] = static_cast<int8_t>(is_finite ? centres[d] : 0);
    radius_codes[d] = static_cast<uint8_t>(is_finite ? __builtin_ceilf(highs[d] * inverse) : 255);
  }
  uint8_t* record = table.record(page / DIGEST_PAGES, head);
  const int64_t lane = page % DIGEST_PAGES;
  for (int64_t four = 0; four < table.fours(); ++four) {
    uint8_t* at = record + (four * DIGEST_PAGES + lane) * 4;
    std::memcpy(at, centre_codes + four * 4, 4);
    std::memcpy(at + table.half_bytes(), radius_codes + four * 4, 4);
  }
  float* scales = reinterpret_cast<float*>(record + 2 * table.half_bytes());
  scales[lane] = centre_scale;
  scales[DIGEST_PAGES + lane] = radius_scale;
}

void update(const DigestTable& table, const PageKeys& keys, int64_t page, int head) {
  switch (keys.dtype) {
    case DType::f32: return update_as<DType::f32>(table, keys, page, head);
    case DType::bf16: return update_as<DType::bf16>(table, keys, page, head);
    default: return update_as<DType::f16>(table, keys, page, head);
  }
}

void read_queries(const ScoreCall& call, const Rows& q, float scale, float* queries) {
  const int64_t padded = call.table.fours() * 4;
  std::memset(queries, 0, call.query_heads * 2 * padded * sizeof(float));
  for (int head = 0; head < call.query_heads; ++head) {
    const uint8_t* from = q.data + head * q.head_stride * item_bytes(q.dtype);
    float* to = queries + head * 2 * padded;
    for (int d = 0; d < call.table.head_dim; ++d) {
      const float element = q.dtype == DType::f32    ? load_as<float>(from + d * 4)
                            : q.dtype == DType::bf16 ? from_bf16(load_as<uint16_t>(from + d * 2))
                                                     : from_f16(load_as<uint16_t>(from + d * 2));
      to[d] = element * scale;
      to[padded + d] = __builtin_fabsf(element * scale);
    }
  }
}

inline vf capped(vf v) { return v < splat(CAP) ? v : splat(CAP); }

template <int R>
[[gnu::noinline]] void score_rows(const ScoreCall& call, const uint8_t* record, const uint8_t* next, int64_t column,
                                  int first_row) {
  const int64_t fours = call.table.fours(), padded = fours * 4, half = call.table.half_bytes();
  const float* queries = call.queries + first_row * 2 * padded;
  const auto* scales = reinterpret_cast<const float*>(record + 2 * half);
  for (int sub = 0; sub < SUBS; ++sub) {
    vf centre_sum[R] = {}, radius_sum[R] = {};
    const uint8_t* at = record + sub * VL * 4;
    for (int64_t four = 0; four < fours; ++four, at += 4 * DIGEST_PAGES) {
      __builtin_prefetch(next + four * 4 * DIGEST_PAGES, 0, 2);
      __builtin_prefetch(next + half + four * 4 * DIGEST_PAGES, 0, 2);
      const vi centres = load_as<vi>(at);
      const vu radii = load_as<vu>(at + half);
      for (int j = 0; j < 4; ++j) {
        const vf centre = __builtin_convertvector((centres << (24 - 8 * j)) >> 24, vf);
        const vf radius = __builtin_convertvector(bits<vi>((radii >> (8 * j)) & 0xffu), vf);
        for (int r = 0; r < R; ++r) {
          centre_sum[r] += splat(queries[r * 2 * padded + four * 4 + j]) * centre;
          radius_sum[r] += splat(queries[(r * 2 + 1) * padded + four * 4 + j]) * radius;
        }
      }
    }
    const vf centre_scale = load_as<vf>(scales + sub * VL), radius_scale = load_as<vf>(scales + DIGEST_PAGES + sub * VL);
    for (int r = 0; r < R; ++r) {
      const vf middle = centre_sum[r] * centre_scale, reach = radius_sum[r] * radius_scale;
      const vf bound = capped(middle + reach);
      vf rank = capped(middle + splat(call.lean) * reach);
      vf estimate = min(capped(middle + splat(call.spread) * reach * reach), bound);
      if (call.softcap != 0) {
        rank = splat(call.softcap) * tanh(rank / splat(call.softcap));
        estimate = splat(call.softcap) * tanh(estimate / splat(call.softcap));
      }
      const int64_t to = (first_row + r) * call.stride + column + sub * VL;
      std::memcpy(call.ranks + to, &rank, sizeof rank);
      std::memcpy(call.estimates + to, &estimate, sizeof estimate);
    }
  }
}

using ScoreRows = void (*)(const ScoreCall&, const uint8_t*, const uint8_t*, int64_t, int);

ScoreRows score_rows_for(int rows) {
  static constexpr ScoreRows by_rows[] = {
      score_rows<1>, score_rows<2>, score_rows<3>, score_rows<4>,
#if KV_VBYTES > 32
      score_rows<5>, score_rows<6>, score_rows<7>, score_rows<8>,
#endif
  };
  return by_rows[rows - 1];
}

void score(const ScoreCall& call, int64_t tile) {
  const int group = call.query_heads / call.table.kv_heads, parts = (group + MAX_ROWS - 1) / MAX_ROWS;
  const int at_once = (group + parts - 1) / parts;
  for (int head = 0; head < call.table.kv_heads; ++head) {
    const uint8_t* record = call.table.record(tile, head);
    const uint8_t* next = record + call.table.record_bytes();  // of the last one: memory that is only prefetched
    for (int row = 0; row < group; row += at_once) {
      const int count = group - row < at_once ? group - row : at_once;
      score_rows_for(count)(call, record, next, tile * DIGEST_PAGES, head * group + row);
    }
  }
}

}  // namespace

extern const DigestKernels digest_kernels;
const DigestKernels digest_kernels = {update, read_queries, score};

}  // namespace kv::KV_ISA
