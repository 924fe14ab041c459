#include "threads.h"

#include <cstdio>
#include <cstring>

namespace kv {
namespace {

constexpr int NO_QUOTA = 1 << 20;

int read_quota() {
  long long quota = 0, period = 0;
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {  // cgroup v2: "max 100000" or "150000 100000"
    const int found = std::fscanf(file, "%lld %lld", &quota, &period);
    std::fclose(file);
    if (found == 2 && quota > 0 && period > 0) return static_cast<int>((quota + period - 1) / period);
  }
  return NO_QUOTA;
}

}  // namespace

int cpu_quota() {
  static const int quota = read_quota();
  return quota;
}

}  // namespace kv
