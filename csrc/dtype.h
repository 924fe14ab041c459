// Element types of cached rows and of activations.
#pragma once

#include <cstdint>

namespace kv {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2, i8 = 3, f8e4m3 = 4 };

constexpr int item_bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : dtype == DType::bf16 || dtype == DType::f16 ? 2 : 1;
}
constexpr bool is_quantized(DType dtype) { return dtype == DType::i8 || dtype == DType::f8e4m3; }

}  // namespace kv
