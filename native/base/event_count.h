// Where a thread sleeps until another thread of the process has done what it waits for.
//
// Every such wait of the library is one of these. Other than that a thread of the library sleeps only where it also
// waits for another process: the monitor in epoll, the progress thread in the transport's poll or on its doorbell in
// the arena, and a caller on its own doorbell there.
#ifndef TFCOLLECTIVE_BASE_EVENT_COUNT_H_
#define TFCOLLECTIVE_BASE_EVENT_COUNT_H_

#include <cstdint>

#include "base/deadline.h"
#include "base/mutex.h"

namespace tfc {

class EventCount {
 public:
  // What a thread waits for may have come. Any thread, after the change, with or without the lock that guards it.
  void Notify() {
    const MutexLock lock(mutex_);
    ++events_;
    changed_.NotifyAll();
  }

  // Waits until `holds()` or the deadline; returns what `holds()` is then. It is called without a lock, and takes those
  // that it needs.
  template <typename Condition>
  bool WaitUntil(Deadline deadline, const Condition& holds) {
    for (uint64_t seen = Events(); !holds();)
      if (!SleepBeyond(&seen, deadline)) return holds();
    return true;
  }

 private:
  uint64_t Events() {
    const MutexLock lock(mutex_);
    return events_;
  }
  // False if the deadline has passed without a further event.
  bool SleepBeyond(uint64_t* seen, Deadline deadline) {
    const MutexLock lock(mutex_);
    const bool news = changed_.WaitUntil(mutex_, deadline, [&]() TFC_REQUIRES(mutex_) { return events_ != *seen; });
    *seen = events_;
    return news;
  }

  Mutex mutex_;
  CondVar changed_;
  uint64_t events_ TFC_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_EVENT_COUNT_H_
