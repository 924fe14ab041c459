#include <nanobind/nanobind.h>

#include <algorithm>

#include "limits.h"
#include "threads.h"

namespace nb = nanobind;

namespace kv {

void bind_limits(nb::module_& m) {
  m.def(
      "read_bytes",
      [](uintptr_t address, int64_t bytes, int threads) {
        const auto* data = reinterpret_cast<const uint8_t*>(address);
        if (bytes < 0) throw nb::value_error("bytes must not be negative");
        if (threads < 1) throw nb::value_error("threads must be at least 1");
        const int64_t share = (bytes / threads + 64) / 64 * 64;  // above bytes / threads: together they reach the end
        uint64_t found = 0;
        nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) reduction(^ : found) schedule(static, 1)
        for (int i = 0; i < threads; ++i) {
          const int64_t begin = std::min(bytes, i * share), end = std::min(bytes, begin + share);
          found ^= KV_SELECT(limit_kernels).read(data + begin, end - begin);
        }
        return found;
      },
      nb::arg("address"), nb::arg("bytes"), nb::arg("threads"),
      "Reads every byte of a range once with `threads` threads: the measured limit of memory reads.");
}

}  // namespace kv
