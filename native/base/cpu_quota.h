// The processor time that a control group allows its processes: a container may see 64 processors and get two.
#ifndef TFCOLLECTIVE_BASE_CPU_QUOTA_H_
#define TFCOLLECTIVE_BASE_CPU_QUOTA_H_

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tfc {

struct CpuQuota {
  int64_t millicores = 0;  // thousandths of a processor; 0: no limit
  uint64_t group = 0;      // inode of the group that sets it: processes that have the same one share it

  // The tightest limit of all groups that this process is in, of version 1 and 2, up to the root. No limit where the
  // kernel does not say. `proc`: where "cgroup" and "mountinfo" lie.
  static CpuQuota Current(const std::string& proc = "/proc/self");
  // Parses the output of ToString. INVALID_ARGUMENT for anything else.
  static Result<CpuQuota> Parse(const std::string& text);

  bool limited() const { return millicores > 0; }
  std::string ToString() const;  // "2500@1f3"; "0@0" without a limit
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_CPU_QUOTA_H_
