#include "threads.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kv {
namespace {

// A mount of the cpu controller, from /proc/self/mountinfo:
//   36 35 98:0 /root /mount/point rw,noatime master:1 - cgroup cgroup rw,cpu,cpuacct
struct Mount {
  std::string root, point;  // the group mounted, and where
  bool is_v2;
};

bool has_option(const std::string& options, const std::string& wanted) {
  std::istringstream all(options);
  for (std::string option; std::getline(all, option, ',');)
    if (option == wanted) return true;
  return false;
}

std::vector<Mount> find_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string id, parent, device, group, point, type, source, options;
    before >> id >> parent >> device >> group >> point;
    after >> type >> source >> options;
    if (type == "cgroup2") mounts.push_back({group, point, true});
    if (type == "cgroup" && has_option(options, "cpu")) mounts.push_back({group, point, false});
  }
  return mounts;
}

// The process's group in the hierarchy of a mount, from /proc/self/cgroup ("0::/path", or "4:cpu,cpuacct:/path").
std::string find_group(const std::string& root, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() : has_option(controllers, "cpu")) return line.substr(second + 1);
  }
  return "/";
}

// The group's folder below the mount point; empty (the mount point itself) where the group lies outside of what is
// mounted, as a container sees it.
std::string folder_below(const Mount& mount, const std::string& group) {
  if (group.find("/..") != std::string::npos) return "";
  if (mount.root == "/") return group == "/" ? "" : group;
  if (group.compare(0, mount.root.size(), mount.root) != 0) return "";
  const std::string rest = group.substr(mount.root.size());
  return rest.empty() || rest[0] == '/' ? rest : "";
}

int whole_cpus(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return NO_QUOTA;
  return static_cast<int>(std::min<long long>((quota + period - 1) / period, NO_QUOTA));
}

int quota_of(const std::string& folder, bool is_v2) {
  long long quota = 0, period = 0;
  if (is_v2) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" leaves both at zero
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1: none
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return whole_cpus(quota, period);
}

}  // namespace

int read_cpu_quota(const std::string& root) {
  int least = NO_QUOTA;
  for (const Mount& mount : find_mounts(root)) {
    std::string below = folder_below(mount, find_group(root, mount.is_v2));
    while (true) {  // the group, and every one above it
      least = std::min(least, quota_of(root + mount.point + below, mount.is_v2));
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
  }
  return least;
}

int cpu_quota() {
  static const int quota = read_cpu_quota("");
  return quota;
}

}  // namespace kv
