// The ranks of a communicator that have left, as far as this rank knows.
#ifndef TFCOLLECTIVE_EXECUTOR_DEPARTURES_H_
#define TFCOLLECTIVE_EXECUTOR_DEPARTURES_H_

#include <set>

#include "base/deadline.h"
#include "base/event_count.h"
#include "base/mutex.h"
#include "executor/frontier.h"

namespace tfc {

// Thread-safe.
class Departures {
 public:
  Departures(int size, EventCount* events) : size_(static_cast<size_t>(size)), events_(events) {}

  // At rank 0: `rank` leaves. False if no rank has to hear of it, because it says nothing new. That rank 0 leaves is
  // always news, because its connections end with it.
  bool Announce(int rank, const Progress& progress) {
    const MutexLock lock(mutex_);
    left_.insert(rank);  // at once: its connection may end before the news comes back
    if (frontier_.Add(progress) || rank == 0) return true;
    Gone(rank);
    return false;
  }
  // The news that `rank` has left.
  void Leave(int rank) {
    const MutexLock lock(mutex_);
    left_.insert(rank);
    Gone(rank);
  }
  // The connection of `rank` has ended. True if it had left before.
  bool Close(int rank) {
    const MutexLock lock(mutex_);
    Gone(rank);
    return left_.count(rank) != 0;
  }
  // Until every rank has left or is lost.
  void WaitForAll(Deadline deadline) {
    events_->WaitUntil(deadline, [this] {
      const MutexLock lock(mutex_);
      return gone_.size() == size_;
    });
  }

 private:
  void Gone(int rank) TFC_REQUIRES(mutex_) {
    gone_.insert(rank);
    events_->Notify();
  }

  const size_t size_;
  EventCount* const events_;
  Mutex mutex_;
  std::set<int> left_ TFC_GUARDED_BY(mutex_);  // ranks that have said so
  std::set<int> gone_ TFC_GUARDED_BY(mutex_);  // ranks that left or were lost
  Frontier frontier_ TFC_GUARDED_BY(mutex_);   // of the leaves that all have heard of
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_DEPARTURES_H_
