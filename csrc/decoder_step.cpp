#include "decoder_step.h"

#include <omp.h>

#include <algorithm>
#include <string>
#include <utility>

#include "decoder_pass.h"
#include "kv_write_call.h"
#include "threads.h"

namespace kv {
namespace {

constexpr int64_t THREAD_PRODUCTS = 1 << 18;  // of a layer: fewer, and meeting another thread costs more than it saves

std::string shape(const Matrix& matrix) { return std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns); }

void require_matrix(const std::string& name, const Matrix& found, int64_t rows, int64_t columns, DType dtype) {
  require(found.rows == rows && found.columns == columns,
          name + ": expected " + shape({nullptr, rows, columns, columns, dtype}) + ", not " + shape(found));
  require(found.dtype == dtype, name + ": its dtype is not the embedding's");
}

void require_norm(const std::string& name, const Norm& norm, int64_t width, DType dtype) {
  require_matrix(name, norm.weight, 1, width, dtype);
}

void require_linear(const std::string& name, const Linear& linear, int64_t outputs, int64_t inputs, DType dtype) {
  require_matrix(name, linear.weight, outputs, inputs, dtype);
  if (linear.bias) require_matrix(name + "_bias", *linear.bias, 1, outputs, dtype);
}

void require_layer(const Decoder& decoder, const DecoderLayer& layer, const std::string& name) {
  const DType dtype = decoder.dtype();
  const int64_t hidden = decoder.hidden(), gated = decoder.gated();
  const int64_t dim = decoder.head_dim, mixed = decoder.query_heads * dim;
  require_norm(name + "input_norm", layer.input_norm, hidden, dtype);
  require_norm(name + "post_norm", layer.post_norm, hidden, dtype);
  require(layer.query_norm.has_value() == layer.key_norm.has_value(), name + "query_norm and key_norm go together");
  if (layer.query_norm) {
    require_norm(name + "query_norm", *layer.query_norm, dim, dtype);
    require_norm(name + "key_norm", *layer.key_norm, dim, dtype);
  }
  require_linear(name + "qkv", layer.qkv, mixed + 2 * decoder.kv_heads * dim, hidden, dtype);
  require_linear(name + "output", layer.output, hidden, mixed, dtype);
  require_linear(name + "gate_up", layer.gate_up, 2 * gated, hidden, dtype);
  require_linear(name + "down", layer.down, hidden, gated, dtype);
}

AttentionCall attention_call(const PassPlan& pass, size_t number, const AttentionPlan& plan) {
  const Decoder& decoder = *pass.decoder;
  const DecoderLayer& layer = decoder.layers[number];
  const Matrix &qkv = pass.at.qkv, &mixed = pass.at.mixed;
  const int64_t dim = decoder.head_dim;
  return {&plan.pages(),
          pass.input->caches[number],
          {qkv.data, qkv.row_stride, dim, qkv.dtype},
          {mixed.data, mixed.row_stride, dim, mixed.dtype},
          nullptr,
          layer.sinks,
          layer.scale,
          layer.softcap,
          decoder.query_heads};
}

}  // namespace

DecoderStep::DecoderStep(Decoder decoder) : decoder_(std::move(decoder)) {
  const DType dtype = decoder_.dtype();
  require(dtype == DType::f32 || dtype == DType::bf16, "embedding must be float32 or bfloat16");
  require(!decoder_.layers.empty(), "layers: a decoder has at least one");
  require(decoder_.head_dim >= 1 && decoder_.kv_heads >= 1, "kv_heads and head_dim must be at least 1");
  require(decoder_.query_heads >= 1 && decoder_.query_heads % decoder_.kv_heads == 0,
          "query_heads must be a multiple of kv_heads");
  require_norm("norm", decoder_.norm, decoder_.hidden(), dtype);
  require_matrix("head", decoder_.head, decoder_.head.rows, decoder_.hidden(), dtype);
  for (size_t i = 0; i < decoder_.layers.size(); ++i)
    require_layer(decoder_, decoder_.layers[i], "layer " + std::to_string(i) + ": ");
}

void DecoderStep::check(const StepInput& input) const {
  const auto tokens = static_cast<int64_t>(input.ids.size());
  require(input.positions.size() == input.ids.size(), "positions: expected one for each id");
  require(input.caches.size() == decoder_.layers.size(), "caches: expected one for each layer");
  require(input.group_of.size() == decoder_.layers.size(), "group_of: expected one for each layer");
  require(input.rotary.rotary_dim <= decoder_.head_dim, "rotary: rotary_dim is larger than head_dim");
  require_matrix("logits", input.logits, static_cast<int64_t>(input.keep.size()), decoder_.head.rows, decoder_.dtype());
  for (const CachedGroup& group : input.groups) {
    require(group.slots->tokens == tokens, "slots: made for another number of tokens than there are ids");
    require(group.plan->num_tokens() == tokens, "plans: made for another number of tokens than there are ids");
  }
  for (size_t i = 0; i < input.caches.size(); ++i) {
    const CacheLayer& cache = input.caches[i];
    require(cache.kv_heads == decoder_.kv_heads && cache.head_dim == decoder_.head_dim,
            "caches: the heads of one are not the decoder's");
    require(input.group_of[i] >= 0 && input.group_of[i] < static_cast<int>(input.groups.size()),
            "group_of: there is no such group");
    input.groups[input.group_of[i]].plan->check(cache);
  }
}

void DecoderStep::run(const StepInput& input, int threads) const {
  check(input);
  if (input.ids.empty()) return;
  const DecoderLayer& layer = decoder_.layers.front();
  const auto rows = static_cast<int64_t>(input.ids.size());
  const int64_t products = rows * (layer.qkv.weight.rows * layer.qkv.weight.columns + layer.down.weight.columns * decoder_.hidden());
  if (!threads) threads = threads_for(products, THREAD_PRODUCTS);
  PassPlan pass{&decoder_, &input, rows, KV_SELECT(rotary_kernels).rows(decoder_.dtype(), input.rotary.dtype),
                kept_rows(input.keep)};
  thread_local Floats memory, partials;
  lay_out(pass, threads, memory);
  const DType dtype = decoder_.dtype();
  const int64_t dim = decoder_.head_dim, stride = pass.at.qkv.row_stride;
  uint8_t* const k = pass.at.qkv.data + decoder_.query_heads * dim * item_bytes(dtype);
  uint8_t* const v = k + decoder_.kv_heads * dim * item_bytes(dtype);
  int64_t partial_floats = 0;
  for (size_t i = 0; i < decoder_.layers.size(); ++i) {
    const CachedGroup& group = input.groups[input.group_of[i]];
    const AttentionCall call = attention_call(pass, i, *group.plan);
    std::shared_ptr<const WorkItems> items = group.plan->items_for(call);
    if (pass.narrows() && i + 1 == decoder_.layers.size()) items = items_of_rows(*items, pass.kept.rows);
    pass.attention.emplace_back(call, std::move(items), threads);
    pass.writes.push_back(
        kv_write_call(input.caches[i], *group.slots, {k, stride, dim, dtype}, {v, stride, dim, dtype}, nullptr));
    partial_floats = std::max(partial_floats, pass.attention.back().partial_floats());
  }
  pass.at.partials = partials.grown(partial_floats);
  Team team;
#pragma omp parallel num_threads(threads)
  run_pass(pass, Member(team, omp_get_thread_num(), omp_get_num_threads()));
}

}  // namespace kv
