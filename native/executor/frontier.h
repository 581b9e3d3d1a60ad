// The least that some ranks had done when they ended: which operations they, all together, stand in the way of.
#ifndef TFCOLLECTIVE_EXECUTOR_FRONTIER_H_
#define TFCOLLECTIVE_EXECUTOR_FRONTIER_H_

#include <cstdint>
#include <map>

namespace tfc {

// Operations that a rank has completed, by channel.
using Progress = std::map<uint32_t, uint64_t>;

inline uint64_t CountOf(const Progress& progress, uint32_t channel) {
  const auto found = progress.find(channel);
  return found == progress.end() ? 0 : found->second;
}

class Frontier {
 public:
  // Adds a rank that had completed `progress`. False if it says nothing new: every operation that this rank is
  // missing from, one that was added before is missing from, too.
  bool Add(const Progress& progress) {
    if (!any_) {
      any_ = true;
      least_ = progress;
      return true;
    }
    bool lower = false;
    for (auto& [channel, count] : least_) {
      const uint64_t other = CountOf(progress, channel);
      if (other >= count) continue;
      count = other;
      lower = true;
    }
    return lower;
  }
  // True if a rank that was added is missing from this operation.
  bool Misses(uint32_t channel, uint64_t sequence) const { return any_ && CountOf(least_, channel) <= sequence; }
  void Clear() { *this = Frontier(); }

 private:
  bool any_ = false;
  Progress least_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_FRONTIER_H_
