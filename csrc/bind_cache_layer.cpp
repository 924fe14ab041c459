#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "cache_layer.h"
#include "rows_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {

DType parse_dtype(const char* argument, const std::string& name) {
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "int8") return DType::i8;
  if (name == "float8_e4m3") return DType::f8e4m3;
  throw nb::value_error((std::string(argument) + ": dtype '" + name + "' is not supported").c_str());
}

void bind_cache_layer(nb::module_& m) {
  nb::class_<CacheLayer>(m, "CacheLayer", "One layer of every block of a pool; borrows the memory.")
      .def(
          "__init__",
          [](CacheLayer* self, uintptr_t address, int64_t num_blocks, int64_t block_stride, int64_t head_stride,
             int64_t half_stride, int64_t slot_stride, int kv_heads, int head_dim, int page_size,
             const std::string& dtype, uintptr_t scales) {
            if (!address) throw nb::value_error("address: a layer needs memory");
            if (num_blocks < 1 || kv_heads < 1 || page_size < 1)
              throw nb::value_error("num_blocks, kv_heads and page_size must be at least 1");
            if (head_dim < 1 || head_dim > 256) throw nb::value_error("head_dim must be between 1 and 256");
            const DType type = parse_dtype("dtype", dtype);
            if (is_quantized(type) != (scales != 0))
              throw nb::value_error("scales: int8 and float8_e4m3 need them, other dtypes have none");
            if (slot_stride < head_dim * item_bytes(type)) throw nb::value_error("slot_stride is shorter than a row");
            new (self) CacheLayer{reinterpret_cast<uint8_t*>(address), block_stride, head_stride, half_stride,
                                  slot_stride, reinterpret_cast<uint8_t*>(scales), type, num_blocks, kv_heads,
                                  head_dim, page_size};
          },
          nb::kw_only(), "address"_a, "num_blocks"_a, "block_stride"_a, "head_stride"_a, "half_stride"_a,
          "slot_stride"_a, "kv_heads"_a, "head_dim"_a, "page_size"_a, "dtype"_a, "scales"_a = 0,
          "Strides in bytes; addresses of the layer (and of its scales) in block 0.")
      .def_ro("head_dim", &CacheLayer::head_dim)
      .def_ro("kv_heads", &CacheLayer::kv_heads);
}

}  // namespace kv
