// The first failure of a communicator: set once, seen by everybody.
#ifndef TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_
#define TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_

#include <atomic>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tfc {

class FirstFailure {
 public:
  // True if this is the first one; later ones change nothing.
  bool Set(const Status& status) {
    {
      const MutexLock lock(mutex_);
      if (failed_.load(std::memory_order_relaxed)) return false;
      status_ = status;
      failed_.store(true, std::memory_order_release);
    }
    changed_.NotifyAll();
    return true;
  }

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Ok while there is none.
  Status Get() const {
    const MutexLock lock(mutex_);
    return status_;
  }

  // Waits for a failure; Ok if none came until the deadline.
  Status WaitFor(Deadline deadline) const {
    const MutexLock lock(mutex_);
    changed_.WaitUntil(mutex_, deadline, [this] { return failed(); });
    return status_;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  Status status_ TFC_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};  // set after `status_`, which then never changes
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_
