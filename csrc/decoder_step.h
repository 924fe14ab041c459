// All layers of a plain Llama-like decoder for one packed batch, in one call: a team of threads goes through them together
// (team.h), and nothing but barriers stands between the matrix products.
//
//   hidden    = embedding[ids]
//   each layer:
//     normed  = rms_norm(hidden += projected)         a barrier only where rows are split among the threads
//     qkv     = normed [q | k | v]^T                  by outputs
//     q, k    = rotary(head norms(q, k)); K and V go to their slots     by runs of tokens and KV heads
//     mixed   = attention                             by pieces (attention_pieces.h)
//     projected = mixed o^T
//     normed  = rms_norm(hidden += projected)
//     gated   = silu(normed gate^T) * (normed up^T)   by columns: gate and up of a column in one thread
//     projected = gated down^T
//   logits    = rms_norm(kept rows of hidden + projected) head^T
//
// The last layer computes K and V of all rows, and everything else of the kept rows alone.
// Roundings and their order are those of the modules; a row's bits depend on neither threads nor the other rows.
#pragma once

#include <optional>
#include <vector>

#include "attention_plan.h"
#include "elementwise.h"
#include "kv_write.h"

namespace kv {

struct Linear {  // borrows the memory of the weights
  Matrix weight;                // [outputs, inputs]
  std::optional<Matrix> bias;  // [1, outputs]
};

struct Norm {
  Matrix weight;  // [1, width]
  float epsilon;
};

struct DecoderLayer {
  Norm input_norm, post_norm;
  std::optional<Norm> query_norm, key_norm;  // of each head; both or none
  Linear qkv, output, gate_up, down;         // joined in this order
  bool has_rotary;
  float scale, softcap;  // softcap 0: none
  const float* sinks;    // null, or [query_heads]
};

struct Decoder {
  Matrix embedding;  // [vocabulary, hidden]
  std::vector<DecoderLayer> layers;
  Norm norm;
  Matrix head;  // [vocabulary, hidden]
  int query_heads, kv_heads, head_dim;

  DType dtype() const { return embedding.dtype; }
  int64_t hidden() const { return embedding.columns; }
  int64_t gated() const { return layers.front().down.weight.columns; }
};

struct CachedGroup {  // layers that share tables
  const TokenSlots* slots;
  AttentionPlan* plan;
};

struct StepInput {
  std::vector<int64_t> ids, positions;  // [tokens]
  std::vector<int64_t> keep;            // indices of tokens whose logits are wanted
  Rotary rotary;                        // row p: of position p
  std::vector<CacheLayer> caches;       // [layers]
  std::vector<int> group_of;            // [layers] index of groups
  std::vector<CachedGroup> groups;
  Matrix logits;                        // [keep, vocabulary], to be written
};

class DecoderStep {
 public:
  // Throws std::invalid_argument naming the part that does not fit the others.
  explicit DecoderStep(Decoder decoder);

  const Decoder& decoder() const { return decoder_; }

  // `threads` 0: as many as the work deserves. Throws std::invalid_argument where the input does not fit. REQUIRES: ids,
  // positions and keep are in range; nobody else uses the plans meanwhile.
  void run(const StepInput& input, int threads) const;

 private:
  void check(const StepInput& input) const;

  Decoder decoder_;
};

}  // namespace kv
