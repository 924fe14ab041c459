// One thread's way through a pass of a decoder (decoder_step.h): what it shares with the others, and its phases.
#pragma once

#include <vector>

#include "attention_pieces.h"
#include "decoder_step.h"
#include "kept_rows.h"
#include "product.h"
#include "scratch.h"
#include "team.h"

namespace kv {

// The residual stream of some rows. Where rows are few, each thread keeps one of its own: adding the same numbers costs less
// than a barrier.
struct Stream {
  Matrix hidden, normed;
  float* prepared;
};

struct Activations {  // of all threads
  std::vector<Stream> streams;      // one, or one of each thread
  std::vector<Stream> kept;         // the rows whose logits are wanted, as often as they are
  std::vector<uint8_t*> gate_up;    // of each thread: [rows, 2 * columns of a piece]
  Matrix qkv, mixed, projected, gated;
  float* gated_prepared = nullptr;  // where the product of gate and up prepares rows itself
  float* partials = nullptr;        // of attention
};

struct PassPlan {  // made once, read by all threads
  const Decoder* decoder;
  const StepInput* input;
  int64_t rows;
  RotateRows rotate;
  KeptRows kept;
  bool is_split = false;     // rows are split among the threads; else each has a stream of its own
  int64_t gate_columns = 0;  // of a piece
  Activations at = {};
  std::vector<AttentionPieces> attention = {};  // [layers]
  std::vector<KVWriteCall> writes = {};         // [layers]

  bool narrows() const { return static_cast<int64_t>(kept.rows.size()) < rows; }  // in the last layer, to the kept rows
};

// Lays out the activations of a pass of at most `threads` threads in `memory`; all but `partials`.
void lay_out(PassPlan& plan, int threads, Floats& memory);

void run_pass(const PassPlan& plan, Member member);

}  // namespace kv
