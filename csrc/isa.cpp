#include "isa.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "isa_binding.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kv {
namespace {

constexpr const char* NAMES[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#if defined(__x86_64__) && defined(KV_HAS_avx2)
bool may_use_tiles() {
  // Tile data is off until a process asks for it: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

// Asked for by hand, because not every compiler knows these names.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && may_use_tiles();  // BF16, TILE
}

Isa best_isa() {
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())) return Isa::portable;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")))
    return Isa::avx2;
  if (!(__builtin_cpu_supports("avx512vnni") && has_avx512_bf16())) return Isa::avx512;
  return has_amx() ? Isa::amx : Isa::avx512_bf16;
}
#else
Isa best_isa() { return Isa::portable; }
#endif

const Isa best = best_isa();
Isa active = best;

}  // namespace

Isa active_isa() { return active; }
const char* isa_name(Isa isa) { return NAMES[static_cast<int>(isa)]; }

std::vector<std::string> available_isas() {
  return {NAMES, NAMES + static_cast<int>(best) + 1};
}

void set_isa(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(best); ++i)
    if (name == NAMES[i]) {
      active = static_cast<Isa>(i);
      return;
    }
  throw std::invalid_argument("instruction set '" + name + "' is not one that this build and processor have");
}

}  // namespace kv
