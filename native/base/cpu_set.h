// The processors that a process may run on, and how it tells others.
#ifndef TFCOLLECTIVE_BASE_CPU_SET_H_
#define TFCOLLECTIVE_BASE_CPU_SET_H_

#include <bitset>
#include <cstddef>
#include <string>

#include "base/status.h"

namespace tfc {

class CpuSet {
 public:
  static constexpr size_t kMaxCpus = 1024;  // the capacity of the kernel's own type

  // The CPUs of the calling thread; CPU 0 alone if the kernel does not tell.
  static CpuSet Usable();
  // Parses the output of ToString. INVALID_ARGUMENT for anything else.
  static Result<CpuSet> Parse(const std::string& text);

  void Add(int cpu) { cpus_.set(static_cast<size_t>(cpu)); }
  void Add(const CpuSet& other) { cpus_ |= other.cpus_; }
  int count() const { return static_cast<int>(cpus_.count()); }
  bool operator==(const CpuSet& other) const { return cpus_ == other.cpus_; }
  // Hexadecimal digits, CPUs 0 to 3 in the last one; "0" for none.
  std::string ToString() const;

 private:
  std::bitset<kMaxCpus> cpus_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_CPU_SET_H_
