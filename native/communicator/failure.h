// The first failure of a communicator: set once, seen by everybody.
#ifndef TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_
#define TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/deadline.h"
#include "base/status.h"

namespace tfc {

class FirstFailure {
 public:
  // True if this is the first one; later ones change nothing.
  bool Set(const Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failed_.load(std::memory_order_relaxed)) return false;
      status_ = status;
      failed_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
    return true;
  }

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Ok while there is none.
  Status Get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

  // Waits for a failure; Ok if none came until the deadline.
  Status WaitFor(Deadline deadline) const {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [this] { return failed_.load(std::memory_order_relaxed); });
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Status status_;
  std::atomic<bool> failed_{false};
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_
