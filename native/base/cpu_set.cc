#include "base/cpu_set.h"

#include <sched.h>

#include <algorithm>

namespace tfc {
namespace {

constexpr size_t kBits = 4;
constexpr char kDigits[] = "0123456789abcdef";

}  // namespace

CpuSet CpuSet::Usable() {
  CpuSet result;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (size_t cpu = 0; cpu < std::min<size_t>(kMaxCpus, CPU_SETSIZE); ++cpu)
      if (CPU_ISSET(cpu, &set)) result.cpus_.set(cpu);
  }
  if (result.cpus_.none()) result.cpus_.set(0);
  return result;
}

Result<CpuSet> CpuSet::Parse(const std::string& text) {
  CpuSet result;
  const bool fits = !text.empty() && text.size() <= kMaxCpus / kBits;
  for (size_t place = 0; fits && place < text.size(); ++place) {
    const char* digit = std::find(kDigits, kDigits + 16, text[text.size() - 1 - place]);
    if (digit == kDigits + 16) return Status(Code::kInvalidArgument, "'" + text + "' is no set of processors");
    for (size_t bit = 0; bit < kBits; ++bit)
      if ((digit - kDigits) >> bit & 1) result.cpus_.set(place * kBits + bit);
  }
  if (!fits) return Status(Code::kInvalidArgument, "'" + text + "' is no set of processors");
  return result;
}

std::string CpuSet::ToString() const {
  std::string text;
  for (size_t place = 0; place < kMaxCpus / kBits; ++place) {
    size_t digit = 0;
    for (size_t bit = 0; bit < kBits; ++bit) digit |= static_cast<size_t>(cpus_[place * kBits + bit]) << bit;
    text.push_back(kDigits[digit]);
  }
  text.erase(std::max<size_t>(text.find_last_not_of('0') + 1, 1));
  std::reverse(text.begin(), text.end());
  return text;
}

}  // namespace tfc
