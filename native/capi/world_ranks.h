// A process set's ranks in the words of the world.
#ifndef TFCOLLECTIVE_CAPI_WORLD_RANKS_H_
#define TFCOLLECTIVE_CAPI_WORLD_RANKS_H_

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tfc {

class WorldRanks {
 public:
  WorldRanks() = default;  // all ranks: nothing to translate
  explicit WorldRanks(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  bool empty() const { return ranks_.empty(); }

  // The error with its peer as a rank of the world. Its text counts the set's ranks from 0, and now says so.
  Status Translate(const Status& status) const {
    if (ranks_.empty() || status.ok() || status.code() == Code::kInvalidArgument) return status;
    const auto place = static_cast<size_t>(status.peer());
    const int peer = status.peer() >= 0 && place < ranks_.size() ? ranks_[place] : status.peer();
    return Status(status.code(), Context() + status.message(), peer, status.sys_errno());
  }

  // The prefix of a text that counts the set's ranks from 0; empty for all ranks.
  std::string Context() const {
    if (ranks_.empty()) return "";
    std::string text = "in a process set, where";
    for (size_t place = 0; place < ranks_.size(); ++place) {
      text += (place == 0 ? " rank " : ", ") + std::to_string(place) + " is the world's rank " +
              std::to_string(ranks_[place]);
    }
    return text + ": ";
  }

 private:
  std::vector<int> ranks_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_CAPI_WORLD_RANKS_H_
