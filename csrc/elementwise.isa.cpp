// Compiled without contraction of a * b + c: each product and each sum is rounded, as in separate tensor operations.
#include "elementwise.h"

#include "silu.h"

namespace kv::KV_ISA {
namespace {

template <DType T>
using item = typename Stored<T>::item;

template <DType T>
inline vf load(const item<T>* from, int64_t count) {  // VL items, fewer at the end of a row
  return count >= VL ? Stored<T>::load(from) : load_part<T>(from, static_cast<int>(count));
}

template <DType T>
inline void store(item<T>* to, vf x, int64_t count) {
  if (count >= VL) Storing<T>::store(to, x);
  else store_part<T>(to, x, static_cast<int>(count));
}

template <class F>
inline void with_dtype(DType dtype, F run) {
  if (dtype == DType::bf16) run.template operator()<DType::bf16>();
  else if (dtype == DType::f16) run.template operator()<DType::f16>();
  else run.template operator()<DType::f32>();
}

// -- RMSNorm ----------------------------------------------------------------------------------------------------------

inline float root(float x) {
#if defined(KV_X86)
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
  return __builtin_sqrtf(x);
#endif
}

// The sum of squares in the order in which torch sums a row on 8 lanes: four interleaved chains of 8 partial sums each,
// cascaded over LEVELS levels of 16 steps; then what does not fill four chains, then the chains, then what does not
// fill 8 lanes, then the lanes. (ATen, native/cpu/SumKernel.cpp, describes it.)
constexpr int LANES = 8, CHAINS = 4, LEVELS = 4, LEVEL_BITS = 4;
constexpr int BLOCK = LANES * CHAINS, VECTORS = BLOCK / VL;

template <DType T>
float sum_of_squares(const item<T>* x, int64_t count) {
  vf sums[LEVELS][VECTORS] = {};
  const int64_t blocks = count / BLOCK;
  for (int64_t b = 0; b < blocks;) {
    for (int v = 0; v < VECTORS; ++v) {
      const vf each = Stored<T>::load(x + b * BLOCK + v * VL);
      sums[0][v] += each * each;
    }
    ++b;
    for (int level = 1; level < LEVELS; ++level) {  // every 16 steps of a level go up to the next
      if (b & ((int64_t{1} << level * LEVEL_BITS) - 1)) break;
      for (int v = 0; v < VECTORS; ++v) {
        sums[level][v] += sums[level - 1][v];
        sums[level - 1][v] = vf{};
      }
    }
  }
  for (int level = 1; level < LEVELS; ++level)
    for (int v = 0; v < VECTORS; ++v) sums[0][v] += sums[level][v];

  float lanes[BLOCK];
  std::memcpy(lanes, sums[0], sizeof lanes);
  const auto square = [&](int64_t i) {
    const vf one = load<T>(x + i, 1);
    return one[0] * one[0];
  };
  int64_t at = blocks * BLOCK;
  for (; at + LANES <= count; at += LANES)
    for (int i = 0; i < LANES; ++i) lanes[i] += square(at + i);
  for (int chain = 1; chain < CHAINS; ++chain)
    for (int i = 0; i < LANES; ++i) lanes[i] += lanes[chain * LANES + i];
  float total = 0;
  for (; at < count; ++at) total += square(at);
  for (int i = 0; i < LANES; ++i) total += lanes[i];
  return total;
}

template <DType T>
void norm_part(item<T>* x, const item<T>* added, const item<T>* weight, item<T>* out, int64_t width, float epsilon) {
  if (added)
    for (int64_t i = 0; i < width; i += VL) {
      const int64_t left = width - i;
      store<T>(x + i, load<T>(x + i, left) + load<T>(added + i, left), left);
    }
  const float mean = sum_of_squares<T>(x, width) / static_cast<float>(width);
  const vf scale = splat(1.0f / root(mean + epsilon));
  for (int64_t i = 0; i < width; i += VL) {
    const int64_t left = width - i;
    store<T>(out + i, load<T>(weight + i, left) * rounded_to<T>(load<T>(x + i, left) * scale), left);
  }
}

void rms_norm(const NormCall& call, int64_t begin, int64_t end) {
  with_dtype(call.x.dtype, [&]<DType T>() {
    const auto* weight = reinterpret_cast<const item<T>*>(call.weight.data);
    const int64_t width = call.weight.columns;
    for (int64_t r = begin; r < end; ++r) {
      auto* x = reinterpret_cast<item<T>*>(call.x.row(r));
      const auto* added = call.added ? reinterpret_cast<const item<T>*>(call.added->row(r)) : nullptr;
      auto* out = reinterpret_cast<item<T>*>(call.out.row(r));
      for (int64_t at = 0; at < call.x.columns; at += width)
        norm_part<T>(x + at, added ? added + at : nullptr, weight, out + at, width, call.epsilon);
    }
  });
}

// -- gated SiLU -------------------------------------------------------------------------------------------------------

void silu_mul(const Matrix& gate_up, const Matrix& out, int64_t begin, int64_t end) {
  with_dtype(out.dtype, [&]<DType T>() {
    const int64_t count = out.columns;
    for (int64_t r = begin; r < end; ++r) {
      const auto* gate = reinterpret_cast<const item<T>*>(gate_up.row(r));
      const auto* up = gate + count;
      auto* to = reinterpret_cast<item<T>*>(out.row(r));
      for (int64_t i = 0; i < count; i += VL) {
        const int64_t left = count - i;
        const vf x = load<T>(gate + i, left);
        store<T>(to + i, silu<T>(x) * load<T>(up + i, left), left);
      }
    }
  });
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels;
const ElementwiseKernels elementwise_kernels = {rms_norm, silu_mul};

}  // namespace kv::KV_ISA
