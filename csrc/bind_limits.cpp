#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>

#include "limits.h"
#include "threads.h"

namespace nb = nanobind;

namespace kv {
namespace {

void check_range(int64_t bytes, int threads) {
  if (bytes < 0) throw nb::value_error("bytes must not be negative");
  if (threads < 1) throw nb::value_error("threads must be at least 1");
}

// Above bytes / threads: together the threads reach the end.
int64_t share_of(int64_t bytes, int threads) { return (bytes / threads + 64) / 64 * 64; }

template <class Copy>
void copy_in_parts(uintptr_t target, uintptr_t source, int64_t bytes, int threads, Copy copy) {
  check_range(bytes, threads);
  auto* to = reinterpret_cast<uint8_t*>(target);
  const auto* from = reinterpret_cast<const uint8_t*>(source);
  const int64_t share = share_of(bytes, threads);
  nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int i = 0; i < threads; ++i) {
    const int64_t begin = std::min(bytes, i * share), end = std::min(bytes, begin + share);
    copy(to + begin, from + begin, end - begin);
  }
}

}  // namespace

void bind_limits(nb::module_& m) {
  m.def(
      "read_bytes",
      [](uintptr_t address, int64_t bytes, int threads) {
        check_range(bytes, threads);
        const auto* data = reinterpret_cast<const uint8_t*>(address);
        const int64_t share = share_of(bytes, threads);
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
  m.def(
      "copy_bytes",
      [](uintptr_t target, uintptr_t source, int64_t bytes, int threads) {
        copy_in_parts(target, source, bytes, threads, [](uint8_t* to, const uint8_t* from, int64_t n) {
          std::memcpy(to, from, static_cast<size_t>(n));
        });
      },
      nb::arg("target"), nb::arg("source"), nb::arg("bytes"), nb::arg("threads"),
      "Copies a range with the C library's memcpy in each thread: a measured limit of copies.");
  m.def(
      "stream_bytes",
      [](uintptr_t target, uintptr_t source, int64_t bytes, int threads) {
        if (target % 64) throw nb::value_error("target is not aligned to 64 bytes");
        copy_in_parts(target, source, bytes, threads, KV_SELECT(limit_kernels).stream);
      },
      nb::arg("target"), nb::arg("source"), nb::arg("bytes"), nb::arg("threads"),
      "Copies a range with stores that go around the caches: the other measured limit of copies.");
}

}  // namespace kv
