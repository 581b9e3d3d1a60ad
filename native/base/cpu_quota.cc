#include "base/cpu_quota.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace tfc {
namespace {

constexpr int kHex = 16;

// Where a hierarchy of groups is mounted, and which of its groups that is.
struct Mount {
  std::string root, point;
};

std::vector<std::string> Split(const std::string& text, char mark) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, mark);) parts.push_back(part);
  return parts;
}

bool Lists(const std::string& text, const std::string& word) {
  for (const std::string& part : Split(text, ',')) {
    if (part == word) return true;
  }
  return false;
}

// Version 2, or the hierarchy of version 1 that has the controller "cpu".
std::optional<Mount> FindMount(const std::string& proc, bool v2) {
  std::ifstream file(proc + "/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const auto fields = Split(line.substr(0, dash), ' ');
    const auto kind = Split(line.substr(dash + 3), ' ');
    if (fields.size() < 5 || kind.size() < 3) continue;
    if (v2 ? kind[0] == "cgroup2" : kind[0] == "cgroup" && Lists(kind[2], "cpu")) return Mount{fields[3], fields[4]};
  }
  return std::nullopt;
}

// The group of this process, as the kernel calls it: "/a/b".
std::optional<std::string> FindGroup(const std::string& proc, bool v2) {
  std::ifstream file(proc + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : Lists(controllers, "cpu")) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Below the mount, which need not show the groups above a container's own.
std::string PathBelow(const Mount& mount, const std::string& group) {
  if (mount.root == "/") return group == "/" ? "" : group;
  const bool inside = group.compare(0, mount.root.size(), mount.root) == 0 &&
                      (group.size() == mount.root.size() || group[mount.root.size()] == '/');
  return inside ? group.substr(mount.root.size()) : "";
}

// The limit that one group sets; 0: none.
int64_t MillicoresOf(const std::string& folder, bool v2) {
  int64_t quota = 0, period = 0;
  if (v2) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000": no number, no limit
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1: no limit
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return 0;
  return std::max<int64_t>(1, static_cast<int64_t>(1000.0 * static_cast<double>(quota) / static_cast<double>(period)));
}

uint64_t InodeOf(const std::string& folder) {
  struct stat info = {};
  return ::stat(folder.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

void Tighten(const std::string& proc, bool v2, CpuQuota* quota) {
  const auto mount = FindMount(proc, v2);
  const auto group = FindGroup(proc, v2);
  if (!mount || !group) return;
  std::string path = PathBelow(*mount, *group);
  while (true) {
    const std::string folder = mount->point + path;
    const int64_t millicores = MillicoresOf(folder, v2);
    if (millicores > 0 && (!quota->limited() || millicores < quota->millicores))
      *quota = CpuQuota{millicores, InodeOf(folder)};
    if (path.empty()) return;
    path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

CpuQuota CpuQuota::Current(const std::string& proc) {
  CpuQuota quota;
  for (const bool v2 : {true, false}) Tighten(proc, v2, &quota);
  return quota;
}

std::string CpuQuota::ToString() const {
  std::stringstream text;
  text << millicores << '@' << std::hex << group;
  return text.str();
}

Result<CpuQuota> CpuQuota::Parse(const std::string& text) {
  CpuQuota quota;
  const char* const end = text.data() + text.size();
  const auto cores = std::from_chars(text.data(), end, quota.millicores);
  const bool has_group = cores.ec == std::errc() && cores.ptr != end && *cores.ptr == '@';
  if (has_group && quota.millicores >= 0) {
    const auto group = std::from_chars(cores.ptr + 1, end, quota.group, kHex);
    if (group.ec == std::errc() && group.ptr == end) return quota;
  }
  return Status(Code::kInvalidArgument, "'" + text + "' is no quota of processor time");
}

}  // namespace tfc
