// The first failure of a communicator: set once, seen by all threads.
#ifndef TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_
#define TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_

#include <atomic>

#include "base/deadline.h"
#include "base/event_count.h"
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
    events_.Notify();
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
    events_.WaitUntil(deadline, [this] { return failed(); });
    return Get();
  }

  // The event count in which every thread of the communicator waits for another one: a failure wakes them all.
  EventCount& events() const { return events_; }

 private:
  mutable Mutex mutex_;
  mutable EventCount events_;
  Status status_ TFC_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};  // set after `status_`, which then never changes
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COMMUNICATOR_FAILURE_H_
