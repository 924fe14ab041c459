// Attention of many new tokens: one item is some queries of one sequence times one KV head's group of query heads, their
// rows folded into one matrix, so that every key is read and packed once an item.
//
// Rows lie in panels of LANES, keys in tiles of KEYS, both packed as prefill_products.h draws it. Per panel and tile:
// scores = K q, weights = 2^(scores - maximum), out += V weights, with the maximum raised as tiles come (online softmax;
// Milakov and Gimelshein, 2018). The maximum follows lazily: while scores exceed it by less than HEADROOM, the sums need
// no rescaling, and the weights stay as exact as before, being floating-point numbers.
//
// What one row gets depends on its own query and on the tiles, which are cut at fixed slots of the sequence's pages: not
// on the other rows of its panel or item.
#include <cstdlib>
#include <utility>

#include "attention.h"
#include "prefill_products.h"

namespace kv::KV_ISA {
namespace {

constexpr int TILES = 8;             // tiles packed at once: their K and V stay in L2 while all panels pass over them
constexpr float HEADROOM = 8.0f;     // a weight is at most 2^8
constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.69314718055994531f;
constexpr float MINUS_INFINITY = -__builtin_inff();

// Memory of one thread: pieces that only grow, taken in the same order by every item.
class Scratch {
 public:
  ~Scratch() {
    for (Piece& piece : pieces_) std::free(piece.memory);
  }
  void restart() { next_ = 0; }
  template <class T>
  T* take(int64_t count) {
    Piece& piece = pieces_[next_++];
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > piece.bytes) {
      std::free(piece.memory);
      piece = {std::aligned_alloc(64, bytes), bytes};
      if (!piece.memory) std::abort();
    }
    return static_cast<T*>(piece.memory);
  }

 private:
  struct Piece {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  Piece pieces_[20];
  int next_ = 0;
};

// -- rows in memory to rows of the engine's elements ---------------------------------------------------------------

template <class E, DType T>
void convert(const uint8_t* from, int count, float scale, typename E::item* to) {
  constexpr int BYTES = sizeof(typename Stored<T>::item);
  for (int i = 0; i < count; i += VL) {
    uint8_t padded[VL * 4] = {};
    const uint8_t* at = from + i * BYTES;
    if (count - i < VL) at = static_cast<uint8_t*>(std::memcpy(padded, at, (count - i) * BYTES));
    const vf x = Stored<T>::load(at) * splat(scale);
    if constexpr (E::dtype == DType::f32) {
      std::memcpy(to + i, &x, sizeof x);
    } else {
      const vh rounded = to_bf16(x);
      std::memcpy(to + i, &rounded, sizeof rounded);
    }
  }
}

// `count` elements and zeros up to `padded`: where they lie already, or in `buffer`.
template <class E>
const typename E::item* row_of(const uint8_t* from, DType dtype, int count, int padded, float scale,
                               typename E::item* buffer) {
  if (dtype == E::dtype && scale == 1.0f) {
    if (count == padded) return reinterpret_cast<const typename E::item*>(from);
    std::memcpy(buffer, from, count * sizeof(typename E::item));
    std::memset(buffer + count, 0, (padded - count) * sizeof(typename E::item));
    return buffer;
  }
  std::memset(buffer, 0, padded * sizeof(typename E::item));
  switch (dtype) {
    case DType::f32: convert<E, DType::f32>(from, count, scale, buffer); break;
    case DType::bf16: convert<E, DType::bf16>(from, count, scale, buffer); break;
    case DType::f16: convert<E, DType::f16>(from, count, scale, buffer); break;
    case DType::i8: convert<E, DType::i8>(from, count, scale, buffer); break;
    case DType::f8e4m3: convert<E, DType::f8e4m3>(from, count, scale, buffer); break;
  }
  return buffer;
}

void write_row(const float* from, float factor, int count, DType dtype, uint8_t* to) {
  if (dtype == DType::f32) {
    for (int i = 0; i < count; ++i) reinterpret_cast<float*>(to)[i] = from[i] * factor;
  } else if (dtype == DType::bf16) {
    for (int i = 0; i < count; ++i) reinterpret_cast<uint16_t*>(to)[i] = to_bf16(from[i] * factor);
  } else {
    for (int i = 0; i < count; ++i) reinterpret_cast<uint16_t*>(to)[i] = to_f16(from[i] * factor);
  }
}

inline bool any(vi v) {
#if defined(KV_AVX512)
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < VL; ++i) found |= v[i];
  return found != 0;
#endif
}

template <int FIRST, int... I>  // lane 2i is lane FIRST + i of a, lane 2i + 1 that of b
inline vu shuffled(vu a, vu b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (FIRST + I / 2 + I % 2 * VL)...);
}

// VL x VL dwords, by log2(VL) times the perfect shuffle of the first half of the rows with the second.
inline void transpose(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
  constexpr std::make_integer_sequence<int, VL> lanes;
  vu rows[VL], next[VL];
  for (int i = 0; i < VL; ++i) rows[i] = load_as<vu>(from + i * from_stride);
#pragma GCC unroll 4
  for (int round = 1; round < VL; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < VL / 2; ++i) {
      next[2 * i] = shuffled<0>(rows[i], rows[i + VL / 2], lanes);
      next[2 * i + 1] = shuffled<VL / 2>(rows[i], rows[i + VL / 2], lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < VL; ++i) rows[i] = next[i];
  }
  for (int i = 0; i < VL; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(vu));
}

// -- one item ----------------------------------------------------------------------------------------------------------

struct Tile {  // KEYS slots of the sequence
  int32_t positions[KEYS];  // NOWHERE: no slot
  int32_t lowest, highest;
  const uint8_t* rows[KEYS];  // of K; null where no row of the item sees the slot: it may hold anything
  float scales[KEYS][2];      // of K and V
};
constexpr int32_t NOWHERE = INT32_MAX;

struct Unit {  // a panel meets a tile
  int panel, tile;
  bool is_masked;
};

template <class E>
class Item {
 public:
  Item(const AttentionCall& call, const PrefillItem& item, const PrefillSpan* span, Scratch& scratch);
  void clear();
  void attend();
  void write() const;

 private:
  using item_t = typename E::item;

  int64_t row_position(int row) const { return first_position_ + row / group_; }
  const uint8_t* row_address(const Rows& rows, int row) const {
    const int64_t token = item_.first_query + row / group_, head = item_.kv_head * group_ + row % group_;
    return rows.data + (token * rows.token_stride + head * rows.head_stride) * item_bytes(rows.dtype);
  }
  void pack_queries();
  int find_tiles(Tile* tiles);
  bool read_table(Tile& tile) const;
  void pack_tile(const Tile& tile, uint32_t* k, uint32_t* v);
  void pack_values(const item_t* const* rows, uint32_t* to);
  void list_units(int num_tiles);
  void run_units(int num_next);
  void prefetch(int row) const;
  void prepare_scores(const Unit& unit, float* scores);
  void rescale(int panel, const vf* factors);

  const AttentionCall& call_;
  const PrefillItem& item_;
  const PrefillSpan* span_;
  const Pages& pages_;
  const int group_, dim_, padded_, dim_chunks_, num_rows_, num_panels_;
  const int64_t first_position_, window_;
  const float sign_;  // of the scale: packed into the queries
  float factor_;      // from products (or soft-capped scores) to logarithms to base 2

  static constexpr int KEY_CHUNKS = KEYS / E::PER_DWORD / CHUNK;

  uint32_t* q_;           // [panels][dims, in dwords][LANES]
  float* out_;            // [panels][dims][LANES]
  float *max_, *sum_;     // [panels][LANES], to base 2
  int32_t* row_positions_;  // [panels][LANES]
  uint32_t *k_, *v_;      // [TILES][K or V as operand a]
  Tile *tiles_, *next_;   // [TILES] the packed ones, and those after them
  int64_t slot_, end_;    // the first slot that is in neither, and where to stop
  item_t* rows_;          // [CHUNK * PER_DWORD + 1][dims] on their way
  uint32_t* dwords_;      // [CHUNK][dims] on their way
  float* scores_[2];      // [KEYS][LANES]
  uint32_t* weights_[2];  // [KEYS, in dwords][LANES]
  Unit* units_;
  int num_units_ = 0;
};

template <class E>
Item<E>::Item(const AttentionCall& call, const PrefillItem& item, const PrefillSpan* span, Scratch& scratch)
    : call_(call),
      item_(item),
      span_(span),
      pages_(*call.pages),
      group_(call.query_heads / call.cache.kv_heads),
      dim_(call.cache.head_dim),
      padded_((dim_ + 31) / 32 * 32),
      dim_chunks_(padded_ / E::PER_DWORD / CHUNK),
      num_rows_(static_cast<int>(item.num_queries) * group_),
      num_panels_((num_rows_ + LANES - 1) / LANES),
      first_position_(pages_.starts[item.sequence] + item.first_query - pages_.query_offsets[item.sequence]),
      window_(pages_.window ? pages_.window : INT32_MAX),
      sign_(call.scale < 0 ? -1.0f : 1.0f) {
  const float magnitude = call.scale == 0 ? 1e-30f : call.scale * sign_;
  factor_ = (call.softcap ? call.softcap : magnitude) * LOG2_E;
  const int64_t lanes = num_panels_ * LANES, dwords = padded_ / E::PER_DWORD;
  scratch.restart();
  q_ = scratch.take<uint32_t>(lanes * dwords);
  float* own = scratch.take<float>(span ? 0 : lanes * (padded_ + 2));
  out_ = span ? span->state : own;
  max_ = out_ + lanes * padded_;
  sum_ = max_ + lanes;
  row_positions_ = scratch.take<int32_t>(lanes);
  k_ = scratch.take<uint32_t>(TILES * KEYS * dwords);
  v_ = scratch.take<uint32_t>(TILES * KEYS * dwords);
  tiles_ = scratch.take<Tile>(TILES);
  next_ = scratch.take<Tile>(TILES);
  rows_ = scratch.take<item_t>((CHUNK * E::PER_DWORD + 1) * padded_);
  dwords_ = scratch.take<uint32_t>(CHUNK * padded_);
  for (auto& scores : scores_) scores = scratch.take<float>(KEYS * LANES);
  for (auto& weights : weights_) weights = scratch.take<uint32_t>(KEYS * LANES);
  units_ = scratch.take<Unit>(num_panels_ * TILES);
}

template <class E>
void Item<E>::pack_queries() {
  const int dwords = padded_ / E::PER_DWORD;
  for (int row = 0; row < num_panels_ * LANES; row += VL) {
    for (int i = 0; i < VL; ++i) {  // lanes without a row repeat the last one
      const int source = row + i < num_rows_ ? row + i : num_rows_ - 1;
      item_t* to = rows_ + i * padded_;
      const item_t* packed = row_of<E>(row_address(call_.q, source), call_.q.dtype, dim_, padded_, sign_, to);
      if (packed != to) std::memcpy(to, packed, padded_ * sizeof(item_t));
      row_positions_[row + i] = static_cast<int32_t>(row_position(source));
    }
    uint32_t* panel = q_ + static_cast<int64_t>(row / LANES) * dwords * LANES + row % LANES;
    for (int i = 0; i < dwords; i += VL)
      transpose(reinterpret_cast<const uint32_t*>(rows_) + i, dwords, panel + i * LANES, LANES);
  }
}

// The next tiles that some row sees; how many, 0 behind the last.
template <class E>
int Item<E>::find_tiles(Tile* tiles) {
  int found = 0;
  for (; found < TILES && slot_ < end_; slot_ += KEYS) found += read_table(tiles[found]);
  return found;
}

// The tile that begins at slot_; false if no row sees any of it.
template <class E>
bool Item<E>::read_table(Tile& tile) const {
  const CacheLayer& cache = call_.cache;
  const int64_t first_entry = pages_.table_offsets[item_.sequence];
  const int64_t entries = pages_.table_offsets[item_.sequence + 1] - first_entry;
  const int64_t last = row_position(num_rows_ - 1), before = first_position_ - window_;
  int64_t entry = slot_ / cache.page_size;
  int slot = static_cast<int>(slot_ % cache.page_size);
  tile.lowest = NOWHERE;
  tile.highest = -1;
  for (int key = 0; key < KEYS; ++entry, slot = 0) {
    const uint8_t* block = cache.base;
    float scales[2] = {1.0f, 1.0f};
    int64_t page = 0;
    if (entry < entries) {
      const int64_t offset = pages_.place(first_entry + entry, cache.block_stride);
      block += offset + item_.kv_head * cache.head_stride;
      if (cache.scales) std::memcpy(scales, cache.scales + offset + item_.kv_head * sizeof scales, sizeof scales);
      page = pages_.pages ? pages_.pages[first_entry + entry] : pages_.first_pages[item_.sequence] + entry;
    }
    for (; slot < cache.page_size && key < KEYS; ++slot, ++key) {
      const int32_t position = entry < entries ? static_cast<int32_t>(page * cache.page_size + slot) : NOWHERE;
      tile.positions[key] = position;
      tile.lowest = position < tile.lowest ? position : tile.lowest;
      tile.highest = position > tile.highest ? position : tile.highest;
      tile.rows[key] = position <= last && position > before ? block + slot * cache.slot_stride : nullptr;
      std::memcpy(tile.scales[key], scales, sizeof scales);
    }
  }
  return tile.lowest <= last && tile.highest > before;
}

// Inlined at once: a function that only prefetches has no effect in GCC's eyes, and its calls are dropped.
template <class E>
[[gnu::always_inline]] inline void Item<E>::prefetch(int row) const {
  const uint8_t* at = next_[row / KEYS].rows[row % KEYS];
  const int bytes = dim_ * item_bytes(call_.cache.dtype);
  for (int i = 0; at && i < bytes; i += 64) {
    __builtin_prefetch(at + i, 0, 2);
    __builtin_prefetch(at + call_.cache.half_stride + i, 0, 2);
  }
}

template <class E>
void Item<E>::pack_tile(const Tile& tile, uint32_t* k, uint32_t* v) {
  const CacheLayer& cache = call_.cache;
  std::memset(rows_, 0, padded_ * sizeof(item_t));
  for (int key = 0; key < KEYS; ++key) {
    const item_t* row = rows_;
    if (tile.rows[key])
      row = row_of<E>(tile.rows[key], cache.dtype, dim_, padded_, tile.scales[key][0], rows_ + padded_);
    for (int chunk = 0; chunk < dim_chunks_; ++chunk)
      std::memcpy(k + (chunk * KEYS + key) * CHUNK, row + chunk * CHUNK * E::PER_DWORD, CHUNK * 4);
  }
  for (int first = 0; first < KEYS; first += CHUNK * E::PER_DWORD, v += padded_ * CHUNK) {
    const item_t* rows[CHUNK * E::PER_DWORD];
    for (int i = 0; i < CHUNK * E::PER_DWORD; ++i) {
      const uint8_t* row = tile.rows[first + i];
      rows[i] = row ? row_of<E>(row + cache.half_stride, cache.dtype, dim_, padded_, tile.scales[first + i][1],
                                rows_ + (i + 1) * padded_)
                    : rows_;
    }
    pack_values(rows, v);
  }
}

// rows: a chunk's keys; to: [dims][CHUNK].
template <class E>
void Item<E>::pack_values(const item_t* const* rows, uint32_t* to) {
  for (int i = 0; i < CHUNK; ++i) {
    uint32_t* pairs = dwords_ + i * padded_;
    if constexpr (E::PER_DWORD == 1) {
      std::memcpy(pairs, rows[i], padded_ * 4);
    } else {
      for (int d = 0; d < padded_; d += VL) {
        const vu even = __builtin_convertvector(load_as<vh>(rows[2 * i] + d), vu);
        const vu odd = __builtin_convertvector(load_as<vh>(rows[2 * i + 1] + d), vu);
        const vu both = even | odd << 16;
        std::memcpy(pairs + d, &both, sizeof both);
      }
    }
  }
  for (int d = 0; d < padded_; d += VL)
    for (int i = 0; i < CHUNK; i += VL) transpose(dwords_ + i * padded_ + d, padded_, to + d * CHUNK + i, CHUNK);
}

// Which panels see something of which tiles, and which do not see all of them. A panel's tiles follow one another: its
// queries and sums stay in L1.
template <class E>
void Item<E>::list_units(int num_tiles) {
  num_units_ = 0;
  for (int panel = 0; panel < num_panels_; ++panel) {
    const int64_t first = row_positions_[panel * LANES], last = row_positions_[panel * LANES + LANES - 1];
    for (int i = 0; i < num_tiles; ++i) {
      const Tile& tile = tiles_[i];
      if (tile.lowest <= last && tile.highest > first - window_)
        units_[num_units_++] = {panel, i, tile.highest > first || tile.lowest <= last - window_};
    }
  }
}

// Soft-cap and mask of one unit's scores.
template <class E>
void Item<E>::prepare_scores(const Unit& unit, float* scores) {
  if (call_.softcap) {
    const vf twice = splat(2 * LOG2_E * (call_.scale == 0 ? 1e-30f : call_.scale * sign_) / call_.softcap);
    for (int i = 0; i < KEYS * LANES; i += VL) {  // tanh(y) = (1 - e^-2y) / (1 + e^-2y), y >= 0
      const vf x = load_as<vf>(scores + i);
      const vf e = exp2_exact((x > 0 ? -x : x) * twice);
      const vf t = (1.0f - e) / (1.0f + e);
      const vf capped = x > 0 ? t : -t;
      std::memcpy(scores + i, &capped, sizeof capped);
    }
  }
  if (!unit.is_masked) return;
  for (int v = 0; v < 2; ++v) {
    const vi last = load_as<vi>(row_positions_ + unit.panel * LANES + v * VL);
    const vi before = pages_.window ? last - static_cast<int32_t>(pages_.window) : vi{} - 1;
    for (int key = 0; key < KEYS; ++key) {
      const vi position = vi{} + tiles_[unit.tile].positions[key];
      float* at = scores + key * LANES + v * VL;
      const vf seen = (position <= last) & (position > before) ? load_as<vf>(at) : splat(MINUS_INFINITY);
      std::memcpy(at, &seen, sizeof seen);
    }
  }
}

template <class E>
void Item<E>::rescale(int panel, const vf* factors) {
  float* out = out_ + static_cast<int64_t>(panel) * padded_ * LANES;
  for (int i = 0; i < padded_ * LANES; i += VL) {
    const vf scaled = load_as<vf>(out + i) * factors[i / VL % 2];
    std::memcpy(out + i, &scaled, sizeof scaled);
  }
}

// All units of the packed tiles, three at a time: while the products of one (scores) and of the one two before it
// (values) run, the softmax of the one between is computed.
template <class E>
void Item<E>::run_units(int num_next) {
  constexpr int ROWS = KEYS / E::PER_DWORD;  // of weights, in dwords
  const int dwords = padded_ / E::PER_DWORD;
  const int share = (ROWS * 8 + padded_ - 1) / padded_;  // of them per step of a product: a unit has padded_ / 8 steps
  const vf factor = splat(factor_);
  const int turns = num_units_ + 2;
  for (int turn = 0; turn < turns; ++turn) {
    for (int row = num_next * KEYS * turn / turns; row < num_next * KEYS * (turn + 1) / turns; ++row) prefetch(row);
    const bool has_softmax = turn >= 1 && turn <= num_units_;
    vf below[2], sums[2] = {}, alphas[2] = {splat(1.0f), splat(1.0f)};
    bool must_rescale = false;
    float* scores = scores_[(turn + 1) % 2];
    uint32_t* weights = weights_[(turn + 1) % 2];
    const int panel = has_softmax ? units_[turn - 1].panel : 0;
    if (has_softmax) {
      if (units_[turn - 1].is_masked || call_.softcap) prepare_scores(units_[turn - 1], scores);
      for (int v = 0; v < 2; ++v) {
        vf top[4];
        for (int i = 0; i < 4; ++i) top[i] = load_as<vf>(scores + i * LANES + v * VL);
        for (int key = 4; key < KEYS; key += 4)
          for (int i = 0; i < 4; ++i) top[i] = max(top[i], load_as<vf>(scores + (key + i) * LANES + v * VL));
        const vf highest = max(max(top[0], top[1]), max(top[2], top[3])) * factor;
        float* at = max_ + panel * LANES + v * VL;
        const vf old = load_as<vf>(at);
        const vi grows = highest > old + splat(HEADROOM);
        const vf now = grows ? highest : old;
        below[v] = now > splat(MINUS_INFINITY) ? now : vf{};
        if (any(grows)) {
          alphas[v] = grows ? exp2_exact(old - now) : splat(1.0f);
          must_rescale = true;
          std::memcpy(at, &now, sizeof now);
        }
      }
    }
    int row = has_softmax ? 0 : ROWS;
    const auto weigh = [&] {
      for (int i = 0; i < share && row < ROWS; ++i, ++row)
        for (int v = 0; v < 2; ++v) {
          vf parts[E::PER_DWORD];
          for (int key = 0; key < E::PER_DWORD; ++key) {
            const vf x = load_as<vf>(scores + (row * E::PER_DWORD + key) * LANES + v * VL);
            parts[key] = E::exp2(x * factor - below[v]);
            sums[v] += parts[key];
          }
          const vu packed = E::pack(parts);
          std::memcpy(weights + row * LANES + v * VL, &packed, sizeof packed);
        }
    };
    if (turn < num_units_) {
      const Unit& unit = units_[turn];
      E::multiply(k_ + unit.tile * KEYS * dwords, q_ + static_cast<int64_t>(unit.panel) * dwords * LANES,
                  scores_[turn % 2], KEYS, dim_chunks_, false, weigh);
    }
    if (turn >= 2) {
      const Unit& unit = units_[turn - 2];
      E::multiply(v_ + unit.tile * KEYS * dwords, weights_[turn % 2],
                  out_ + static_cast<int64_t>(unit.panel) * padded_ * LANES, padded_, KEY_CHUNKS, true, weigh);
    }
    while (row < ROWS) weigh();
    if (!has_softmax) continue;
    for (int v = 0; v < 2; ++v) {
      float* at = sum_ + panel * LANES + v * VL;
      const vf sum = load_as<vf>(at) * alphas[v] + sums[v];
      std::memcpy(at, &sum, sizeof sum);
    }
    if (must_rescale) rescale(panel, alphas);
  }
}

template <class E>
void Item<E>::clear() {
  const int64_t lanes = num_panels_ * LANES;
  std::memset(out_, 0, lanes * padded_ * 4);
  std::memset(sum_, 0, lanes * 4);
  for (int64_t i = 0; i < lanes; ++i) max_[i] = MINUS_INFINITY;
}

template <class E>
void Item<E>::attend() {
  const int page_size = call_.cache.page_size;
  const int64_t base = pages_.first_pages[item_.sequence] * page_size;
  slot_ = 0;
  end_ = (pages_.table_offsets[item_.sequence + 1] - pages_.table_offsets[item_.sequence]) * page_size;
  if (!pages_.pages) {  // pages in a row: the slots that are seen are known
    const int64_t seen = row_position(num_rows_ - 1) + 1 - base, behind = first_position_ - window_ + 1 - base;
    end_ = seen < end_ ? seen : end_;
    slot_ = behind > 0 ? behind / KEYS * KEYS : 0;
  }
  if (span_) {
    slot_ = slot_ > span_->first_slot ? slot_ : span_->first_slot;
    end_ = end_ < span_->stop_slot ? end_ : span_->stop_slot;
  }
  if (slot_ >= end_) return;
  pack_queries();
  E::begin();
  for (int found = find_tiles(next_); found;) {
    Tile* packed = next_;
    next_ = tiles_;
    tiles_ = packed;
    for (int i = 0; i < found; ++i)
      pack_tile(tiles_[i], k_ + i * KEYS * padded_ / E::PER_DWORD, v_ + i * KEYS * padded_ / E::PER_DWORD);
    list_units(found);
    found = find_tiles(next_);
    run_units(found);
  }
  E::end();
}

template <class E>
void Item<E>::write() const {
  for (int row = 0; row < num_panels_ * LANES; row += VL) {
    float factors[VL];
    for (int i = 0; i < VL && row + i < num_rows_; ++i) {
      const int head = item_.kv_head * group_ + (row + i) % group_;
      float highest = max_[row + i], sum = sum_[row + i];
      factors[i] = 1.0f;
      if (call_.sinks) {
        const float sink = call_.sinks[head] * LOG2_E, top = sink > highest ? sink : highest;
        factors[i] = __builtin_exp2f(highest - top);
        sum = sum * factors[i] + __builtin_exp2f(sink - top);
        highest = top;
      }
      factors[i] = sum == 0 ? 0.0f : factors[i] / sum;
      if (call_.lse) {
        const int64_t token = item_.first_query + (row + i) / group_;
        call_.lse[token * call_.query_heads + head] =
            sum == 0 ? MINUS_INFINITY : (highest + __builtin_log2f(sum)) * LN_2;
      }
    }
    const float* out = out_ + static_cast<int64_t>(row / LANES) * padded_ * LANES + row % LANES;
    uint32_t* rows = dwords_;  // [VL][dims]
    for (int d = 0; d < padded_; d += VL)
      transpose(reinterpret_cast<const uint32_t*>(out) + d * LANES, LANES, rows + d, padded_);
    for (int i = 0; i < VL && row + i < num_rows_; ++i)
      write_row(reinterpret_cast<const float*>(rows + i * padded_), factors[i], dim_, call_.out.dtype,
                const_cast<uint8_t*>(row_address(call_.out, row + i)));
  }
}

// -- the table ---------------------------------------------------------------------------------------------------------

template <class E>
void run_with(const AttentionCall& call, const PrefillItem& item, const PrefillSpan* span) {
  static thread_local Scratch scratch;
  Item<E> one(call, item, span, scratch);
  if (!span || span->is_first) one.clear();
  one.attend();
  if (!span || span->is_last) one.write();
}

// Where both sides hold no more than bf16, products of bf16 lose nothing; otherwise floats.
[[maybe_unused]] bool fits_bf16(const AttentionCall& call) {
  const DType stored = call.cache.dtype;
  return call.q.dtype == DType::bf16 && (stored == DType::bf16 || is_quantized(stored));
}

void run(const AttentionCall& call, const PrefillItem& item, const PrefillSpan* span) {
#if defined(KV_ISA_amx)
  if (fits_bf16(call)) return run_with<Tiles>(call, item, span);
#elif defined(KV_BF16_DOT)
  if (fits_bf16(call)) return run_with<Bf16>(call, item, span);
#endif
  run_with<F32>(call, item, span);
}

int64_t state_floats(const AttentionCall& call, const PrefillItem& item) {
  const int64_t rows = item.num_queries * (call.query_heads / call.cache.kv_heads);
  const int64_t padded = (call.cache.head_dim + 31) / 32 * 32;
  return (rows + LANES - 1) / LANES * LANES * (padded + 2);
}

// Enough rows that packing the keys is a small share of the work; the products of tiles are ten times as fast.
int64_t queries_per_item(const AttentionCall& call) {
  int rows = 256;
#if defined(KV_ISA_amx)
  if (fits_bf16(call)) rows = 1024;
#endif
  const int group = call.query_heads / call.cache.kv_heads;
  return rows > group ? rows / group : 1;
}

}  // namespace

extern const PrefillKernels prefill_kernels;
const PrefillKernels prefill_kernels = {queries_per_item, state_floats, run};

}  // namespace kv::KV_ISA
