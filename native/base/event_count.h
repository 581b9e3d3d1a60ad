// Lets a thread sleep until another thread of the process signals progress.
//
// Who sleeps where:
// - A caller of a collective, a bucket plan, a join, the set-up or a shutdown, and an operation that has failed and
// waits for the
//   decision: in the EventCount of the communicator's FirstFailure, so a failure wakes them all.
// - A caller whose operation runs on its own thread in shared memory: on its doorbell there (Arena), which an interrupt
//   of the arena rings, too.
// - The progress thread: in the poll of the transport or on its doorbell in the arena; in an EventCount of its own when
//   it has neither.
// - A caller of an operation on GPUs, and the thread that makes NCCL's calls: in the EventCount of the
//   DeviceCommunicator, which a failure notifies, too. CUDA and NCCL notify of nothing: that thread looks at what is
//   under way at intervals.
// - A call of a program that XLA has compiled: in one of its own.
// - The monitor: in epoll. The caller that starts the control connections waits for it in their EventCount.
#ifndef TFCOLLECTIVE_BASE_EVENT_COUNT_H_
#define TFCOLLECTIVE_BASE_EVENT_COUNT_H_

#include <cstdint>

#include "base/deadline.h"
#include "base/mutex.h"

namespace tfc {

class EventCount {
 public:
  // Wakes waiting threads, whose condition may hold now. Any thread, after the change, with or without the lock that
  // guards it.
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
