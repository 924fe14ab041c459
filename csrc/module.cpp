// The Python module kvpager._native: every concept binds itself in its own bind_*.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "isa_binding.h"
#include "threads.h"

namespace nb = nanobind;

namespace kv {
void bind_adaptive(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_cache_layer(nb::module_& m);
void bind_decoder_step(nb::module_& m);
void bind_elementwise(nb::module_& m);
void bind_limits(nb::module_& m);
void bind_kv_write(nb::module_& m);
void bind_block_copy(nb::module_& m);
void bind_bookkeeping(nb::module_& m);
void bind_books(nb::module_& m);
void bind_page_mass(nb::module_& m);
void bind_product(nb::module_& m);
void bind_range_reader(nb::module_& m);
void bind_ranked_leaves(nb::module_& m);
void bind_replay(nb::module_& m);
void bind_selective(nb::module_& m);
void bind_threads(nb::module_& m);
}  // namespace kv

NB_MODULE(_native, m) {
  m.doc() = "Native CPU kernels of kvpager; internal, use kvpager.native and the classes above it.";
  m.def("isa", [] { return std::string(kv::isa_name(kv::active_isa())); });
  m.def("available_isas", &kv::available_isas);
  m.def("set_isa", &kv::set_isa, nb::arg("name"));
  m.def("num_threads", &kv::max_threads, "Threads a kernel may use: OpenMP's setting, at most the CPU quota.");
  kv::bind_adaptive(m);
  kv::bind_attention(m);
  kv::bind_cache_layer(m);
  kv::bind_decoder_step(m);
  kv::bind_elementwise(m);
  kv::bind_limits(m);
  kv::bind_kv_write(m);
  kv::bind_block_copy(m);
  kv::bind_bookkeeping(m);
  kv::bind_books(m);
  kv::bind_page_mass(m);
  kv::bind_product(m);
  kv::bind_range_reader(m);
  kv::bind_ranked_leaves(m);
  kv::bind_replay(m);
  kv::bind_selective(m);
  kv::bind_threads(m);
}
