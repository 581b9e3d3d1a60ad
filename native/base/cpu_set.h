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
  static constexpr size_t kMaxCpus = 1024;  // what the kernel's own type holds

  // Those of the calling thread; CPU 0 alone where the kernel does not say.
  static CpuSet Usable();
  // What ToString writes. INVALID_ARGUMENT for anything else.
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
