#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {

void bind_threads(nb::module_& m) {
  m.def(
      "read_cpu_quota",
      [](const std::string& root) -> nb::object {
        const int quota = read_cpu_quota(root);
        return quota == NO_QUOTA ? nb::none() : nb::object(nb::int_(quota));
      },
      "root"_a = "",
      "Whole CPUs that the process's control groups allow, None where they don't bound it; `root`: another root folder.");
}

}  // namespace kv
