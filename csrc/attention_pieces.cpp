#include "attention_pieces.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kv {
namespace {

constexpr int64_t PIECES_PER_THREAD = 4;  // so that all end at about the same time

}  // namespace

AttentionPieces::AttentionPieces(const AttentionCall& call, std::shared_ptr<const WorkItems> items, int threads)
    : call_(call), items_(std::move(items)) {
  const int64_t heads = call.cache.kv_heads, wanted = threads * PIECES_PER_THREAD;
  const auto decode = static_cast<int64_t>(items_->decode.size()), all = num_prefill() + decode;
  int64_t most = 1;  // items of a share
  for (const ItemShare& share : items_->shares) most = std::max(most, share.count);
  int64_t apart = threads == 1 || !all ? 1 : (wanted + all - 1) / all;
  items_at_once_ = most;
  if (threads > 1 && most > 1) {  // heads have nothing in common, so they go first
    apart = heads;
    items_at_once_ = std::clamp<int64_t>(decode * heads / wanted, 1, most);
  }
  heads_at_once_ = static_cast<int>((heads + apart - 1) / apart);
  head_parts_ = static_cast<int>((heads + heads_at_once_ - 1) / heads_at_once_);
  item_parts_ = (most + items_at_once_ - 1) / items_at_once_;
  items_at_once_ = (most + item_parts_ - 1) / item_parts_;  // of about the same size
}

int64_t AttentionPieces::partial_floats() const {
  return items_->partial_rows * KV_SELECT(decode_kernels).state_floats(call_);
}

void AttentionPieces::attend(int64_t piece, float* partials) const {
  if (piece < num_prefill()) return KV_SELECT(prefill_kernels).run(call_, items_->prefill[piece], nullptr);
  piece -= num_prefill();
  ItemShare share = items_->shares[piece / (head_parts_ * item_parts_)];
  const int64_t first = piece / head_parts_ % item_parts_ * items_at_once_;
  share.first += first;
  share.count = std::min(items_at_once_, share.count - first);
  if (share.count > 0) attend_share(share, static_cast<int>(piece % head_parts_) * heads_at_once_, partials);
}

void AttentionPieces::attend_share(const ItemShare& share, int first_head, float* partials) const {
  thread_local std::vector<DecodeItem> chosen;
  chosen.clear();
  for (int64_t i = share.first; i < share.first + share.count; ++i) {
    DecodeItem item = items_->decode[i];
    if (first_head >= item.num_heads) return;  // an item of one head
    if (item.partial >= 0) item.partial += first_head * item.num_queries * items_->group;
    item.first_head += first_head;
    item.num_heads = std::min(heads_at_once_, item.num_heads - first_head);
    chosen.push_back(item);
  }
  KV_SELECT(decode_kernels).run_shared(call_, {chosen.data(), share.count, share.shared_stop}, partials);
}

void AttentionPieces::merge(int64_t number, float* partials) const {
  KV_SELECT(decode_kernels).merge(call_, items_->merges[number], partials);
}

}  // namespace kv
