#include "select.h"

#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr float NEVER = -__builtin_inff(), LEFT_OUT = __builtin_inff(), ALWAYS = -1;  // depths are 0 at least
constexpr int32_t INFINITY_BITS = 0x7f800000;

struct Total {  // of exp(score): log of the sum
  float top, log;
};

float largest_lane(vf v) {
  float found = v[0];
  for (int i = 1; i < VL; ++i) found = v[i] > found ? v[i] : found;
  return found;
}

vi lanes_below(int64_t count) {  // all bits of the first `count` lanes
  vi lane;
  for (int i = 0; i < VL; ++i) lane[i] = i < count ? -1 : 0;
  return lane;
}

inline vf masked(vf v, int64_t left) { return left >= VL ? v : lanes_below(left) ? v : splat(NEVER); }

Total total_of(const float* scores, int64_t count) {
  vf top = splat(NEVER);
  for (int64_t i = 0; i < count; i += VL) top = max(masked(load_as<vf>(scores + i), count - i), top);
  const float base = largest_lane(top);
  vf all{};
  for (int64_t i = 0; i < count; i += VL) all += exp_negative(masked(load_as<vf>(scores + i), count - i) - splat(base));
  return {base, base + __builtin_logf(sum(all))};
}

class Selection {  // of one KV head
 public:
  Selection(const SelectCall& call, int head)
      : call_(call),
        shares_(call.estimates + head * call.group * call.stride),
        depths_(call.depths + head * call.stride),
        rounded_((call.num_digests + VL - 1) / VL * VL),
        head_(head) {}

  void run() {
    weigh();
    for (int64_t page = 0; page < call_.num_digests; ++page)
      if (page < call_.num_sinks || page >= call_.first_recent) depths_[page] = ALWAYS;
    const int64_t without_digest = call_.num_pages - call_.num_digests;
    if (call_.mass > 0) take(least_limit([&](int32_t limit) { return leaves_too_much(limit); }), call_.num_digests);
    else take(least_limit([&](int32_t limit) { return num_within(limit) < call_.wanted - without_digest; }),
              call_.wanted - without_digest);
  }

 private:
  // Depths, and the estimated shares of the pages for each query head.
  void weigh() {
    for (int64_t i = 0; i < rounded_; i += VL) {
      const vf none = splat(LEFT_OUT);
      std::memcpy(depths_ + i, &none, sizeof none);
    }
    for (int g = 0; g < call_.group; ++g) {
      const float* ranks = call_.ranks + (head_ * call_.group + g) * call_.stride;
      float* shares = shares_ + g * call_.stride;
      const Total rank = total_of(ranks, call_.num_digests), estimate = total_of(shares, call_.num_digests);
      for (int64_t i = 0; i < rounded_; i += VL) {
        const int64_t left = call_.num_digests - i;
        const vf depth = splat(rank.log) - masked(load_as<vf>(ranks + i), left);
        const vf so_far = load_as<vf>(depths_ + i);
        vf least = depth < so_far ? depth : so_far;
        least = least > vf{} ? least : vf{};
        std::memcpy(depths_ + i, &least, sizeof least);
        const vf below = masked(load_as<vf>(shares + i), left) - splat(estimate.log);
        const vf share = exp_negative(below < vf{} ? below : vf{});
        std::memcpy(shares + i, &share, sizeof share);
      }
      call_.log_skipped[head_ * call_.group + g] = estimate.log + __builtin_logf(static_cast<float>(call_.page_size));
    }
  }

  int64_t num_within(int32_t limit) const {
    vi found{};
    for (int64_t i = 0; i < rounded_; i += VL) found -= load_as<vi>(depths_ + i) <= limit;
    int64_t all = 0;
    for (int i = 0; i < VL; ++i) all += found[i];
    return all;
  }

  float share_behind(int32_t limit, int g) const {
    const float* shares = shares_ + g * call_.stride;
    vf left{};
    for (int64_t i = 0; i < rounded_; i += VL) {
      const vi is_behind = load_as<vi>(depths_ + i) > limit;
      left += bits<vf>(bits<vi>(load_as<vf>(shares + i)) & is_behind);
    }
    return sum(left);
  }

  bool leaves_too_much(int32_t limit) const {
    for (int g = 0; g < call_.group; ++g)
      if (share_behind(limit, g) > 1 - call_.mass) return true;
    return false;
  }

  // Numbers that are not negative are in the order of their bits: halving the range of these 31 times finds the limit.
  template <class IsTooLow>
  static int32_t least_limit(IsTooLow is_too_low) {
    int32_t low = 0, high = INFINITY_BITS - 1;
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (is_too_low(middle)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Pages within the limit, ascending; of those at it no more than make `most` in all, the last ones first out.
  void take(int32_t limit, int64_t most) {
    int32_t* pages = call_.pages + head_ * call_.num_pages;
    int64_t count = 0, ties = most - num_within(limit - 1);
    for (int64_t page = 0; page < call_.num_digests; ++page) {
      const int32_t depth = bits<int32_t>(depths_[page]);
      if (depth < limit || (depth == limit && ties-- > 0)) pages[count++] = static_cast<int32_t>(page);
      else depths_[page] = LEFT_OUT;
    }
    for (int64_t page = call_.num_digests; page < call_.num_pages; ++page) pages[count++] = static_cast<int32_t>(page);
    call_.counts[head_] = count;
    for (int g = 0; g < call_.group; ++g)
      call_.log_skipped[head_ * call_.group + g] += __builtin_logf(share_behind(INFINITY_BITS - 1, g));
  }

  const SelectCall& call_;
  float *shares_, *depths_;
  const int64_t rounded_;
  const int head_;
};

void select(const SelectCall& call, int kv_head) { Selection(call, kv_head).run(); }

}  // namespace

extern const SelectKernels select_kernels;
const SelectKernels select_kernels = {select};

}  // namespace kv::KV_ISA
