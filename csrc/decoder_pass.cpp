#include "decoder_pass.h"

#include <algorithm>
#include <cstring>

#include "kv_write_quantized.h"

namespace kv {
namespace {

constexpr int64_t KEY_PIECES = 8;              // of keys for each thread, so that all end at about the same time
constexpr int64_t PIECE_PRODUCTS = 1 << 15;    // fewer are not worth asking for
constexpr int64_t OWN_ITEMS = 1 << 13;         // activations up to which each thread has its own stream
constexpr int64_t GATE_BYTES = 1 << 18;        // of gate and up rows that a thread keeps close
constexpr int64_t RUNS_PER_PIECE = 8;          // of quantized pages

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Outputs that a thread takes at once.
int64_t outputs_per_piece(int64_t outputs, int64_t products_each, int threads, const ProductPieces& rule) {
  const int64_t needed = (outputs + threads * rule.most - 1) / (threads * rule.most);
  const int64_t turns = threads == 1 ? needed : std::max(rule.per_thread, needed);
  const int64_t even = (outputs + threads * turns - 1) / (threads * turns);
  const int64_t least = (PIECE_PRODUCTS + products_each - 1) / products_each;
  return std::min(outputs, rounded_up(std::max(even, least), rule.outputs));
}

Matrix rows_of(const Matrix& all, int64_t begin, int64_t end) {
  return {all.row(begin), end - begin, all.columns, all.row_stride, all.dtype};
}

Matrix columns_of(const Matrix& all, int64_t begin, int64_t end) {
  return {all.data + begin * item_bytes(all.dtype), all.rows, end - begin, all.row_stride, all.dtype};
}

Rows heads_of(const Rows& all, int first) {
  return {all.data + first * all.head_stride * item_bytes(all.dtype), all.token_stride, all.head_stride, all.dtype};
}

KVWriteCall heads_of(KVWriteCall call, int first, int count) {
  call.cache.base += first * call.cache.head_stride;
  call.cache.kv_heads = count;
  call.k = heads_of(call.k, first);
  call.v = heads_of(call.v, first);
  return call;
}

class Layout {  // gives memory out; counts only where there is none yet
 public:
  explicit Layout(float* memory) : memory_(memory) {}
  int64_t floats() const { return used_; }
  float* take(int64_t floats) {
    float* const found = memory_ ? memory_ + used_ : nullptr;
    used_ += rounded_up(floats, 16);
    return found;
  }
  Matrix matrix(int64_t rows, int64_t columns, DType dtype) {
    return {reinterpret_cast<uint8_t*>(take((rows * columns * item_bytes(dtype) + 3) / 4)), rows, columns, columns, dtype};
  }

 private:
  float* memory_;
  int64_t used_ = 0;
};

Activations laid_out(const PassPlan& plan, int threads, Layout& layout) {
  const Decoder& decoder = *plan.decoder;
  const ProductKernels& product = KV_SELECT(product_kernels);
  const DType dtype = decoder.dtype();
  const int64_t rows = plan.rows, mixed = decoder.query_heads * decoder.head_dim;
  const int64_t kept = static_cast<int64_t>(plan.input->keep.size());
  int64_t prepared = 0;
  for (const int64_t inputs : {decoder.hidden(), mixed, decoder.gated()})
    prepared = std::max(prepared, product.prepared_floats(rows, inputs, dtype));
  const int64_t prepared_kept = product.prepared_floats(kept, decoder.hidden(), dtype);
  Activations at;
  for (int i = 0; i < (plan.is_split ? 1 : threads); ++i) {
    at.streams.push_back(
        {layout.matrix(rows, decoder.hidden(), dtype), layout.matrix(rows, decoder.hidden(), dtype), layout.take(prepared)});
    at.kept.push_back({layout.matrix(kept, decoder.hidden(), dtype), layout.matrix(kept, decoder.hidden(), dtype),
                       layout.take(prepared_kept)});
  }
  for (int i = 0; i < threads; ++i)
    at.gate_up.push_back(layout.matrix(rows, 2 * plan.gate_columns, dtype).data);
  at.qkv = layout.matrix(rows, decoder.layers.front().qkv.weight.rows, dtype);
  at.mixed = layout.matrix(rows, mixed, dtype);
  at.projected = layout.matrix(rows, decoder.hidden(), dtype);
  at.gated = layout.matrix(rows, decoder.gated(), dtype);
  const bool gates = product.can_gate(rows, decoder.layers.front().gate_up.weight);
  at.gated_prepared = layout.take(gates ? product.prepared_floats(rows, decoder.gated(), dtype) : 0);
  return at;
}

class Pass {
 public:
  Pass(const PassPlan& plan, Member member)
      : plan_(plan), decoder_(*plan.decoder), input_(*plan.input), at_(plan.at), member_(member),
        elements_(KV_SELECT(elementwise_kernels)), product_(KV_SELECT(product_kernels)),
        stream_(at_.streams[plan.is_split ? 0 : member.number()]), kept_(at_.kept[plan.is_split ? 0 : member.number()]),
        mixed_(at_.mixed), projected_(at_.projected), gated_(at_.gated) {}

  void run() {
    over_rows(plan_.rows, [&](int64_t begin, int64_t end) { embed(begin, end); });
    const size_t layers = decoder_.layers.size();
    const Matrix* pending = nullptr;
    for (size_t number = 0; number < layers; ++number) {
      const DecoderLayer& layer = decoder_.layers[number];
      const bool narrows = plan_.narrows() && number + 1 == layers;
      normalise(layer.input_norm, pending);
      if (narrows) multiply_kept(layer.qkv);
      else multiply(stream_.prepared, layer.qkv, at_.qkv);
      place_keys(layer, plan_.writes[number], input_.groups[input_.group_of[number]]);
      if (narrows && plan_.kept.rows.empty()) return;
      attend(plan_.attention[number]);
      if (narrows) narrow();
      prepare(mixed_);
      multiply(stream_.prepared, layer.output, projected_);
      normalise(layer.post_norm, &projected_);
      multiply(gate(layer), layer.down, projected_);
      pending = &projected_;
    }
    finish();
  }

 private:
  template <class F>
  void over_rows(int64_t rows, F run) {  // what it writes is there for the product that follows
    if (!plan_.is_split) return run(0, rows);
    member_.split(rows, run);
    member_.meet();
  }

  void embed(int64_t begin, int64_t end) {
    const int64_t bytes = decoder_.hidden() * item_bytes(decoder_.dtype());
    for (int64_t r = begin; r < end; ++r) std::memcpy(stream_.hidden.row(r), decoder_.embedding.row(input_.ids[r]), bytes);
  }

  void normalise(const Norm& norm, const Matrix* pending) {
    const NormCall call{stream_.hidden, pending, norm.weight, stream_.normed, norm.epsilon};
    over_rows(stream_.hidden.rows, [&](int64_t begin, int64_t end) {
      elements_.rms_norm(call, begin, end);
      product_.prepare(stream_.normed, decoder_.dtype(), begin, end, stream_.prepared);
    });
  }

  void prepare(const Matrix& rows) {
    over_rows(rows.rows, [&](int64_t begin, int64_t end) {
      product_.prepare(rows, decoder_.dtype(), begin, end, stream_.prepared);
    });
  }

  void multiply(const float* prepared, const Linear& linear, const Matrix& out) {
    const Matrix& weight = linear.weight;
    const int64_t step = outputs_per_piece(weight.rows, out.rows * weight.columns, member_.size(),
                                           product_.pieces(out.rows, decoder_.dtype()));
    member_.share((weight.rows + step - 1) / step, [&](int64_t piece) {
      product_.run(prepared, weight, linear.bias ? &*linear.bias : nullptr, out, piece * step,
                   std::min(weight.rows, (piece + 1) * step), weights_of(weight, (piece + member_.size()) * step, step));
    });
    member_.meet();
  }

  // Of outputs from `begin` on: what this thread takes next, if all take turns.
  static NextWeights weights_of(const Matrix& weight, int64_t begin, int64_t count) {
    if (begin >= weight.rows) return {};
    return {weight.row(begin), std::min(count, weight.rows - begin) * weight.row_stride * item_bytes(weight.dtype)};
  }

  // Outputs `begin` to `end` as a product of their own.
  static Linear part_of(const Linear& linear, int64_t begin, int64_t end) {
    Linear part{rows_of(linear.weight, begin, end), std::nullopt};
    if (linear.bias) part.bias = columns_of(*linear.bias, begin, end);
    return part;
  }

  void multiply_part(const Linear& linear, int64_t begin, int64_t end, const Matrix& out, NextWeights next) {
    const Linear part = part_of(linear, begin, end);
    product_.run(stream_.prepared, part.weight, part.bias ? &*part.bias : nullptr, out, 0, end - begin, next);
  }

  // Prepared for the product that follows.
  const float* gate(const DecoderLayer& layer) {
    const int64_t all = decoder_.gated(), step = plan_.gate_columns;
    const bool gates = product_.can_gate(gated_.rows, layer.gate_up.weight);
    member_.share((all + step - 1) / step, [&](int64_t piece) {
      if (!gates) return gate_piece(layer, piece * step, std::min(all, (piece + 1) * step));
      const std::optional<Matrix>& bias = layer.gate_up.bias;
      product_.run_gate(stream_.prepared, gated_.rows, layer.gate_up.weight, bias ? &*bias : nullptr, piece * step,
                        std::min(all, (piece + 1) * step), at_.gated_prepared);
    });
    member_.meet();
    if (gates) return at_.gated_prepared;
    prepare(gated_);
    return stream_.prepared;
  }

  void gate_piece(const DecoderLayer& layer, int64_t begin, int64_t end) {
    const int64_t all = decoder_.gated(), step = plan_.gate_columns, count = end - begin;
    const Matrix gate_up{at_.gate_up[member_.number()], gated_.rows, 2 * count, 2 * count, decoder_.dtype()};
    const Matrix& weight = layer.gate_up.weight;
    const int64_t after = begin + member_.size() * step;  // what this thread takes next, or the first of what follows
    const NextWeights up = weights_of(weight, all + begin, count);
    const NextWeights gate = after < all ? weights_of(weight, after, step) : weights_of(layer.down.weight, 0, step);
    multiply_part(layer.gate_up, begin, end, columns_of(gate_up, 0, count), up);
    multiply_part(layer.gate_up, all + begin, all + end, columns_of(gate_up, count, 2 * count), gate);
    elements_.silu_mul(gate_up, columns_of(gated_, begin, end), 0, gated_.rows);
  }

  // -- keys, values and queries ---------------------------------------------------------------------------------------

  void place_keys(const DecoderLayer& layer, const KVWriteCall& write, const CachedGroup& group) {
    const std::vector<TokenRun>& runs = group.slots->runs;
    const auto num_runs = static_cast<int64_t>(runs.size());
    const int heads = write.cache.kv_heads;
    const bool are_few = num_runs < member_.size() * KEY_PIECES;
    const int at_once = are_few ? 1 : heads, parts = are_few ? heads : 1;
    const bool quantizes = is_quantized(write.cache.dtype);
    member_.share(num_runs * parts, [&](int64_t piece) {
      const TokenRun& run = runs[piece / parts];
      const int first = static_cast<int>(piece % parts) * at_once;
      prepare(layer, run, first, at_once);
      if (!quantizes) KV_SELECT(kv_write_kernels).write(heads_of(write, first, at_once), &run, 1);
    });
    member_.meet();
    if (!quantizes) return;
    member_.share((num_runs + RUNS_PER_PIECE - 1) / RUNS_PER_PIECE, [&](int64_t piece) {  // whole pages, with all their runs
      const int64_t first = piece * RUNS_PER_PIECE;
      KV_SELECT(kv_write_quantized_kernels).write(write, *group.slots, first, std::min(num_runs, first + RUNS_PER_PIECE));
    });
    member_.meet();
  }

  // Norms and rotary embedding of `count` KV heads from `first` on and of the query heads that use them.
  void prepare(const DecoderLayer& layer, const TokenRun& run, int first, int count) {
    const int group = decoder_.query_heads / decoder_.kv_heads, dim = decoder_.head_dim;
    const Matrix tokens = rows_of(at_.qkv, run.first, run.first + run.count);
    const auto heads = [&](int from, int number) {
      return columns_of(tokens, int64_t{from} * dim, int64_t{from + number} * dim);
    };
    const Matrix queries = heads(first * group, count * group), keys = heads(decoder_.query_heads + first, count);
    if (layer.query_norm) {
      elements_.rms_norm({queries, nullptr, layer.query_norm->weight, queries, layer.query_norm->epsilon}, 0, run.count);
      elements_.rms_norm({keys, nullptr, layer.key_norm->weight, keys, layer.key_norm->epsilon}, 0, run.count);
    }
    if (!layer.has_rotary) return;
    rotate(queries, run.first);
    rotate(keys, run.first);
  }

  void rotate(const Matrix& heads, int64_t first_token) {
    const Rotary& tables = input_.rotary;
    const int64_t head_bytes = decoder_.head_dim * item_bytes(heads.dtype);
    for (int64_t t = 0; t < heads.rows; ++t) {
      const int64_t table = input_.positions[first_token + t] * tables.token_stride * item_bytes(tables.dtype);
      uint8_t* const row = heads.row(t);
      plan_.rotate(row, row, tables.cos + table, tables.sin + table, tables.rotary_dim / 2,
                   static_cast<int>(heads.columns / decoder_.head_dim), head_bytes);
    }
  }

  void attend(const AttentionPieces& pieces) {
    member_.share(pieces.num_pieces(), [&](int64_t piece) { pieces.attend(piece, at_.partials); });
    member_.meet();
    if (!pieces.num_merges()) return;
    member_.share(pieces.num_merges(), [&](int64_t number) { pieces.merge(number, at_.partials); });
    member_.meet();
  }

  // -- the kept rows ----------------------------------------------------------------------------------------------------

  // K and V of all rows, queries of the kept ones.
  void multiply_kept(const Linear& qkv) {
    const int64_t queries = int64_t{decoder_.query_heads} * decoder_.head_dim, all = qkv.weight.rows;
    multiply(stream_.prepared, part_of(qkv, queries, all), columns_of(at_.qkv, queries, all));
    const std::vector<int64_t>& kept = plan_.kept.rows;
    if (kept.empty()) return;
    const auto count = static_cast<int64_t>(kept.size());
    const Matrix normed = rows_of(kept_.normed, 0, count);
    const Matrix found = rows_of(at_.mixed, 0, count);  // free until attention writes it
    over_rows(count, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) copy_row(stream_.normed, kept[r], normed, r);
      product_.prepare(normed, decoder_.dtype(), begin, end, kept_.prepared);
    });
    multiply(kept_.prepared, part_of(qkv, 0, queries), found);
    member_.split(count, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) copy_row(found, r, at_.qkv, kept[r]);
    });
    member_.meet();
  }

  // From here on, the kept rows are all there are.
  void narrow() {
    const auto move_up = [&](const Matrix& all) {  // none is read after another was written there
      for (size_t r = 0; r < plan_.kept.rows.size(); ++r) copy_row(all, plan_.kept.rows[r], all, r);
    };
    member_.share(1, [&](int64_t) { move_up(at_.mixed); });
    if (!plan_.is_split || !member_.number()) move_up(stream_.hidden);
    member_.meet();
    for (Matrix* rows : {&stream_.hidden, &stream_.normed, &mixed_, &projected_, &gated_})
      rows->rows = static_cast<int64_t>(plan_.kept.rows.size());
  }

  static void copy_row(const Matrix& from, int64_t row, const Matrix& to, int64_t at) {  // as wide as `from`
    std::memmove(to.row(at), from.row(row), from.columns * item_bytes(from.dtype));
  }

  void finish() {
    const auto kept = static_cast<int64_t>(input_.keep.size());
    if (!kept) return;
    const Matrix added = rows_of(kept_.normed, 0, kept);  // read before it is written
    const NormCall call{kept_.hidden, &added, decoder_.norm.weight, kept_.normed, decoder_.norm.epsilon};
    over_rows(kept, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        copy_row(stream_.hidden, plan_.kept.places[r], kept_.hidden, r);
        copy_row(projected_, plan_.kept.places[r], added, r);
      }
      elements_.rms_norm(call, begin, end);
      product_.prepare(kept_.normed, decoder_.dtype(), begin, end, kept_.prepared);
    });
    multiply(kept_.prepared, {decoder_.head, std::nullopt}, input_.logits);
  }

  const PassPlan& plan_;
  const Decoder& decoder_;
  const StepInput& input_;
  const Activations& at_;
  Member member_;
  const ElementwiseKernels& elements_;
  const ProductKernels& product_;
  Stream stream_, kept_;
  Matrix mixed_, projected_, gated_;  // of as many rows as are under way
};

}  // namespace

void lay_out(PassPlan& plan, int threads, Floats& memory) {
  const Decoder& decoder = *plan.decoder;
  const int64_t widest = std::max(decoder.hidden(), decoder.gated());
  const int64_t most = std::max<int64_t>(plan.rows, static_cast<int64_t>(plan.input->keep.size()));
  plan.is_split = threads > 1 && most * widest > OWN_ITEMS;
  ProductPieces pieces = KV_SELECT(product_kernels).pieces(plan.rows, decoder.dtype());
  const int64_t close = GATE_BYTES / (2 * plan.rows * item_bytes(decoder.dtype()));
  pieces.most = std::clamp(close, pieces.outputs, pieces.most);
  plan.gate_columns = outputs_per_piece(decoder.gated(), 2 * plan.rows * decoder.hidden(), threads, pieces);
  Layout counted(nullptr);
  laid_out(plan, threads, counted);
  Layout layout(memory.grown(counted.floats()));
  plan.at = laid_out(plan, threads, layout);
}

void run_pass(const PassPlan& plan, Member member) { Pass(plan, member).run(); }

}  // namespace kv
