#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "range_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

template <class Item>
using Column = nb::ndarray<Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void read(RangeReader& reader, const Column<const int32_t>& fds, const Column<const int64_t>& offsets, uintptr_t target,
          int64_t stride, int64_t bytes, const Column<int64_t>& done) {
  const size_t count = fds.shape(0);
  if (offsets.shape(0) != count || done.shape(0) != count)
    throw nb::value_error("fds, offsets and done must be equally long");
  if (bytes < 1 || bytes > stride) throw nb::value_error("bytes must be between 1 and stride");
  if (!target && count) throw nb::value_error("target: needs memory");
  const Ranges ranges{fds.data(), offsets.data(), reinterpret_cast<uint8_t*>(target), stride, bytes,
                      static_cast<int64_t>(count), done.data()};
  nb::gil_scoped_release release;
  reader.read(ranges);
}

}  // namespace

void bind_range_reader(nb::module_& m) {
  nb::class_<RangeReader>(m, "RangeReader", "Many positioned reads at once, by up to max_threads threads of its own.")
      .def(
          "__init__",
          [](RangeReader* self, int max_threads) {
            if (max_threads < 0) throw nb::value_error("max_threads must not be negative");
            new (self) RangeReader(max_threads);
          },
          nb::kw_only(), "max_threads"_a)
      .def("read", &read, "fds"_a.noconvert(), "offsets"_a.noconvert(), nb::kw_only(), "target"_a, "stride"_a, "bytes"_a,
           "done"_a.noconvert(),
           "Reads `bytes` bytes of file fds[i] (int32) from offsets[i] (int64) on to target + i * stride. done (int64) "
           "receives the bytes read, fewer where a file ends, or minus the number of an error.");
}

}  // namespace kv
