#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "decoder_step.h"
#include "ids_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

std::optional<Norm> head_norm(const std::optional<Matrix>& weight, float epsilon) {
  return weight ? std::optional<Norm>({*weight, epsilon}) : std::nullopt;
}

void run(const DecoderStep& self, const Ids& ids, const Ids& positions, const Ids& keep, const Rotary& rotary,
         const std::vector<const CacheLayer*>& caches, std::vector<int> group_of,
         const std::vector<const TokenSlots*>& slots, const std::vector<AttentionPlan*>& plans, const Matrix& logits,
         int threads) {
  if (slots.size() != plans.size()) throw nb::value_error("plans: expected as many as slots");
  if (threads < 0) throw nb::value_error("threads must not be negative");
  StepInput input{.ids = read_ids("ids", ids, self.decoder().embedding.rows),
                  .positions = read_ids("positions", positions, rotary.tokens),
                  .keep = read_ids("keep", keep, static_cast<int64_t>(ids.shape(0))),
                  .rotary = rotary,
                  .caches = {},
                  .group_of = std::move(group_of),
                  .groups = {},
                  .logits = logits};
  for (const CacheLayer* cache : caches) input.caches.push_back(*cache);
  for (size_t i = 0; i < slots.size(); ++i) input.groups.push_back({slots[i], plans[i]});
  nb::gil_scoped_release release;
  self.run(input, threads);
}

}  // namespace

void bind_decoder_step(nb::module_& m) {
  nb::class_<DecoderLayer>(m, "DecoderLayer", "The weights of one layer of a decoder; borrows their memory.")
      .def(
          "__init__",
          [](DecoderLayer* self, const Matrix& input_norm, float input_epsilon, const Matrix& qkv,
             const std::optional<Matrix>& qkv_bias, const std::optional<Matrix>& query_norm, float query_epsilon,
             const std::optional<Matrix>& key_norm, float key_epsilon, bool has_rotary, float scale, float softcap,
             uintptr_t sinks, const Matrix& output, const std::optional<Matrix>& output_bias, const Matrix& post_norm,
             float post_epsilon, const Matrix& gate_up, const std::optional<Matrix>& gate_up_bias, const Matrix& down,
             const std::optional<Matrix>& down_bias) {
            new (self) DecoderLayer{{input_norm, input_epsilon},
                                    {post_norm, post_epsilon},
                                    head_norm(query_norm, query_epsilon),
                                    head_norm(key_norm, key_epsilon),
                                    {qkv, qkv_bias},
                                    {output, output_bias},
                                    {gate_up, gate_up_bias},
                                    {down, down_bias},
                                    has_rotary,
                                    scale,
                                    softcap,
                                    reinterpret_cast<const float*>(sinks)};
          },
          nb::kw_only(), "input_norm"_a, "input_epsilon"_a, "qkv"_a, "qkv_bias"_a = nb::none(),
          "query_norm"_a = nb::none(), "query_epsilon"_a = 0.0f, "key_norm"_a = nb::none(), "key_epsilon"_a = 0.0f,
          "has_rotary"_a, "scale"_a, "softcap"_a = 0.0f, "sinks"_a = 0, "output"_a, "output_bias"_a = nb::none(),
          "post_norm"_a, "post_epsilon"_a, "gate_up"_a, "gate_up_bias"_a = nb::none(), "down"_a,
          "down_bias"_a = nb::none(),
          "Weights [outputs, inputs] and biases [1, outputs]; qkv and gate_up are joined in this order. Norms [1, width],\n"
          "those of query and key heads as wide as a head. sinks: address of float32 [query_heads], 0: none.");

  nb::class_<DecoderStep>(m, "DecoderStep", "All layers of a decoder for one packed batch, in one call.")
      .def(
          "__init__",
          [](DecoderStep* self, const Matrix& embedding, const std::vector<const DecoderLayer*>& layers,
             const Matrix& norm, float epsilon, const Matrix& head, int query_heads, int kv_heads, int head_dim) {
            Decoder decoder{embedding, {}, {norm, epsilon}, head, query_heads, kv_heads, head_dim};
            for (const DecoderLayer* layer : layers) decoder.layers.push_back(*layer);
            new (self) DecoderStep(std::move(decoder));
          },
          nb::kw_only(), "embedding"_a, "layers"_a, "norm"_a, "epsilon"_a, "head"_a, "query_heads"_a, "kv_heads"_a,
          "head_dim"_a, "Of one dtype, float32 or bfloat16; embedding and head [vocabulary, hidden].")
      .def("run", &run, nb::kw_only(), "ids"_a, "positions"_a, "keep"_a, "rotary"_a, "caches"_a, "group_of"_a, "slots"_a,
           "plans"_a, "logits"_a, "threads"_a = 0,
           "Writes K and V of the packed tokens `ids` [T] at `positions` [T] into their slots and computes the logits\n"
           "[len(keep), vocabulary] at the indices `keep`. rotary: tables whose row p is of position p; caches and group_of:\n"
           "per layer; slots and plans: per group. threads 0: as many as pay.");
}

}  // namespace kv
