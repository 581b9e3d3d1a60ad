// Which ranks of a communicator have left, as far as this rank knows.
#ifndef TFCOLLECTIVE_EXECUTOR_DEPARTURES_H_
#define TFCOLLECTIVE_EXECUTOR_DEPARTURES_H_

#include <condition_variable>
#include <mutex>
#include <set>

#include "base/deadline.h"
#include "executor/frontier.h"

namespace tfc {

// Thread-safe.
class Departures {
 public:
  explicit Departures(int size) : size_(static_cast<size_t>(size)) {}

  // At rank 0: `rank` leaves. False if no rank has to hear of it, because it says nothing new. That rank 0 leaves is
  // always news, because its connections end with it.
  bool Announce(int rank, const Progress& progress) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_.insert(rank);  // at once: its connection may end before the news comes back
    if (frontier_.Add(progress) || rank == 0) return true;
    Gone(rank);
    return false;
  }
  // The news that `rank` has left.
  void Leave(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_.insert(rank);
    Gone(rank);
  }
  // The connection of `rank` has ended. True if it had left before.
  bool Close(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    Gone(rank);
    return left_.count(rank) != 0;
  }
  // Until every rank has left or is lost.
  void WaitForAll(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [this] { return gone_.size() == size_; });
  }

 private:
  void Gone(int rank) {
    gone_.insert(rank);
    changed_.notify_all();
  }

  const size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> left_;  // ranks that have said so
  std::set<int> gone_;  // ranks that left or were lost
  Frontier frontier_;   // of the leaves that all have heard of
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_DEPARTURES_H_
