// A point of the set-up to which all ranks come, with what speaks against going on as planned.
#ifndef TFCOLLECTIVE_EXECUTOR_SET_UP_BARRIER_H_
#define TFCOLLECTIVE_EXECUTOR_SET_UP_BARRIER_H_

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "communicator/failure.h"
#include "executor/messages.h"

namespace tfc {

// Thread-safe.
class SetUpBarrier {
 public:
  SetUpBarrier(int size, const FirstFailure* failure) : size_(size), failure_(failure) {}

  // At rank 0: `rank` has come. The objection of the first rank that has one, when all have come.
  std::optional<Status> Arrive(int rank, const Status& objection) {
    const MutexLock lock(mutex_);
    if (gathered_.ok()) gathered_ = objection;
    arrived_.insert(rank);
    if (static_cast<int>(arrived_.size()) < size_) return std::nullopt;
    arrived_.clear();
    return std::exchange(gathered_, Status::Ok());
  }
  // Rank 0 has said that all have come.
  void Open(const Go& go) {
    const MutexLock lock(mutex_);
    go_ = go;
    failure_->events().Notify();
  }

  // Before this rank says that it comes.
  void Close() {
    const MutexLock lock(mutex_);
    go_.reset();
  }
  // The answer of rank 0; nothing after a failure or the deadline.
  std::optional<Go> Wait(Deadline deadline) const {
    failure_->events().WaitUntil(deadline, [this] { return failure_->failed() || go(); });
    return go();
  }
  // At rank 0.
  std::vector<int> missing() const {
    const MutexLock lock(mutex_);
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank)
      if (arrived_.count(rank) == 0) missing.push_back(rank);
    return missing;
  }

 private:
  std::optional<Go> go() const {
    const MutexLock lock(mutex_);
    return go_;
  }

  const int size_;
  const FirstFailure* const failure_;
  mutable Mutex mutex_;
  std::set<int> arrived_ TFC_GUARDED_BY(mutex_);
  Status gathered_ TFC_GUARDED_BY(mutex_);
  std::optional<Go> go_ TFC_GUARDED_BY(mutex_);
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_SET_UP_BARRIER_H_
