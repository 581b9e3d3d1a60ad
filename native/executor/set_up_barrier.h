// A point of the set-up to which all ranks come, with what speaks against going on as planned.
#ifndef TFCOLLECTIVE_EXECUTOR_SET_UP_BARRIER_H_
#define TFCOLLECTIVE_EXECUTOR_SET_UP_BARRIER_H_

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "communicator/failure.h"
#include "executor/messages.h"

namespace tfc {

// Thread-safe.
class SetUpBarrier {
 public:
  explicit SetUpBarrier(int size) : size_(size) {}

  // At rank 0: `rank` has come. The objection of the first rank that has one, when all have come.
  std::optional<Status> Arrive(int rank, const Status& objection) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (gathered_.ok()) gathered_ = objection;
    arrived_.insert(rank);
    if (static_cast<int>(arrived_.size()) < size_) return std::nullopt;
    arrived_.clear();
    return std::exchange(gathered_, Status::Ok());
  }
  // Rank 0 has said that all have come.
  void Open(const Go& go) {
    std::lock_guard<std::mutex> lock(mutex_);
    go_ = go;
    changed_.notify_all();
  }
  // There is a failure.
  void Wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }

  // Before this rank says that it comes.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    go_.reset();
  }
  // What rank 0 has said; nothing after a failure or the deadline.
  std::optional<Go> Wait(Deadline deadline, const FirstFailure& failure) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [&] { return go_ || failure.failed(); });
    return go_;
  }
  // At rank 0.
  std::vector<int> missing() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank)
      if (arrived_.count(rank) == 0) missing.push_back(rank);
    return missing;
  }

 private:
  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> arrived_;
  Status gathered_;
  std::optional<Go> go_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_SET_UP_BARRIER_H_
