// Compiled with -ffp-contract=off (CMakeLists.txt): a fused product and sum would round once where torch rounds twice.
#include "rotary.h"

#include "store.h"

namespace kv::KV_ISA {
namespace {

template <DType X, DType C>
void rotate_row(uint8_t* out_bytes, const uint8_t* x_bytes, const uint8_t* cos_bytes, const uint8_t* sin_bytes,
                int half) {
  constexpr DType BETWEEN = X == C ? X : DType::f32;
  using item = typename Stored<X>::item;
  using table_item = typename Stored<C>::item;
  auto* out = reinterpret_cast<item*>(out_bytes);
  auto* x = reinterpret_cast<const item*>(x_bytes);
  auto* cos = reinterpret_cast<const table_item*>(cos_bytes);
  auto* sin = reinterpret_cast<const table_item*>(sin_bytes);
  for (int i = 0; i < half; i += VL) {
    const int n = half - i;
    const auto load_x = [&](int at) { return n >= VL ? Stored<X>::load(x + at) : load_part<X>(x + at, n); };
    const auto load_table = [&](const table_item* table, int at) {
      return n >= VL ? Stored<C>::load(table + at) : load_part<C>(table + at, n);
    };
    const auto product = [](vf a, vf b) { return rounded_to<BETWEEN>(a * b); };
    const vf a = load_x(i), b = load_x(i + half);
    const vf low = rounded_to<BETWEEN>(product(a, load_table(cos, i)) - product(b, load_table(sin, i)));
    const vf high = rounded_to<BETWEEN>(product(b, load_table(cos, i + half)) + product(a, load_table(sin, i + half)));
    if (n >= VL) {
      Storing<X>::store(out + i, low);
      Storing<X>::store(out + i + half, high);
    } else {
      store_part<X>(out + i, low, n);
      store_part<X>(out + i + half, high, n);
    }
  }
}

template <DType X>
RotateRow row_of(DType tables) {
  return tables == DType::f32    ? rotate_row<X, DType::f32>
         : tables == DType::bf16 ? rotate_row<X, DType::bf16>
                                 : rotate_row<X, DType::f16>;
}

RotateRow row(DType x, DType tables) {
  return x == DType::f32    ? row_of<DType::f32>(tables)
         : x == DType::bf16 ? row_of<DType::bf16>(tables)
                            : row_of<DType::f16>(tables);
}

}  // namespace

extern const RotaryKernels rotary_kernels;
const RotaryKernels rotary_kernels = {row};

}  // namespace kv::KV_ISA
