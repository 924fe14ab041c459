// Compiled with -ffp-contract=off (CMakeLists.txt): a fused product and sum would round once where torch rounds twice.
#include "rotary.h"

#include "store.h"

namespace kv::KV_ISA {
namespace {

template <DType X, DType C>
void rotate_rows(uint8_t* out_bytes, const uint8_t* x_bytes, const uint8_t* cos_bytes, const uint8_t* sin_bytes, int half,
                 int count, int64_t apart) {
  constexpr DType BETWEEN = X == C ? X : DType::f32;
  using item = typename Stored<X>::item;
  using table_item = typename Stored<C>::item;
  auto* cos = reinterpret_cast<const table_item*>(cos_bytes);
  auto* sin = reinterpret_cast<const table_item*>(sin_bytes);
  for (int i = 0; i < half; i += VL) {
    const int n = half - i;
    const auto load_table = [&](const table_item* table) {
      return n >= VL ? Stored<C>::load(table) : load_part<C>(table, n);
    };
    const vf low_cos = load_table(cos + i), low_sin = load_table(sin + i);
    const vf high_cos = load_table(cos + i + half), high_sin = load_table(sin + i + half);
    for (int r = 0; r < count; ++r) {
      auto* out = reinterpret_cast<item*>(out_bytes + r * apart) + i;
      auto* x = reinterpret_cast<const item*>(x_bytes + r * apart) + i;
      const auto load_x = [&](int at) { return n >= VL ? Stored<X>::load(x + at) : load_part<X>(x + at, n); };
      const auto product = [](vf a, vf b) { return rounded_to<BETWEEN>(a * b); };
      const vf a = load_x(0), b = load_x(half);
      const vf low = rounded_to<BETWEEN>(product(a, low_cos) - product(b, low_sin));
      const vf high = rounded_to<BETWEEN>(product(b, high_cos) + product(a, high_sin));
      if (n >= VL) {
        Storing<X>::store(out, low);
        Storing<X>::store(out + half, high);
      } else {
        store_part<X>(out, low, n);
        store_part<X>(out + half, high, n);
      }
    }
  }
}

template <DType X>
RotateRows rows_of(DType tables) {
  return tables == DType::f32    ? rotate_rows<X, DType::f32>
         : tables == DType::bf16 ? rotate_rows<X, DType::bf16>
                                 : rotate_rows<X, DType::f16>;
}

RotateRows rows(DType x, DType tables) {
  return x == DType::f32    ? rows_of<DType::f32>(tables)
         : x == DType::bf16 ? rows_of<DType::bf16>(tables)
                            : rows_of<DType::f16>(tables);
}

}  // namespace

extern const RotaryKernels rotary_kernels;
const RotaryKernels rotary_kernels = {rows};

}  // namespace kv::KV_ISA
