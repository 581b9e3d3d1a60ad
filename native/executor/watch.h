// What runs now on every channel of this rank, what has ended there, and how far ranks that left had
// come. Answers "would this operation wait for a rank that has gone?" and "what is this rank doing?".
#ifndef TFCOLLECTIVE_EXECUTOR_WATCH_H_
#define TFCOLLECTIVE_EXECUTOR_WATCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "communicator/operation.h"
#include "control/failure_arbiter.h"
#include "executor/frontier.h"

namespace tfc {

class WatchList {
 public:
  struct Stall {
    uint32_t channel;
    uint64_t sequence;
    std::string title;
  };

  // Notes that `operation` runs as number `sequence` of `channel`. It must live until End. Gives
  // PEER_LOST if a rank that has left will never take part in it. `*view_owed` says that a rank
  // has asked for this operation's view before it began.
  Status Begin(uint32_t channel, uint64_t sequence, const Operation& operation, bool* view_owed);
  void End(uint32_t channel, bool completed);
  // An operation of kInlineChannel has completed without Begin and End: no rank had to wait for it. Calls of
  // this one come one after the other; it takes no lock.
  void CompletedUnseen() { unseen_.store(unseen_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // `rank` has left after `progress`: PEER_LOST if an operation that runs here needs more of it.
  Status Depart(int rank, const Progress& progress);
  // PEER_LOST if any rank has left: for operations that no rank has begun yet.
  Status CheckNoneLeft(const std::string& title) const;

  // What this rank does as operation `sequence` of `channel`. Without a text if it has not come to it: then
  // Begin will say that the view is owed.
  FailureArbiter::View View(uint32_t channel, uint64_t sequence);

  // Visits the operations that run now: calls visit(channel, sequence, operation) for each, which must neither block
  // nor call the list.
  template <typename Visitor>
  void VisitRunning(const Visitor& visit) const {
    const MutexLock lock(mutex_);
    for (const auto& [channel, slot] : slots_)
      if (slot.operation != nullptr) visit(channel, slot.sequence, *slot.operation);
  }

  Progress progress() const;
  uint64_t completed() const;
  uint64_t active() const;
  // The title of what has run longest by the looks of Stalled; nothing if nothing runs.
  std::string Oldest() const;
  // Operations that have run for `seconds` since the first look at them, each once.
  std::vector<Stall> Stalled(Deadline::Clock::time_point now, double seconds);

 private:
  struct Slot {
    const Operation* operation = nullptr;  // nullptr: nothing runs
    uint64_t sequence = 0;                 // of what runs or ran last
    uint64_t completed = 0;
    std::optional<Deadline::Clock::time_point> since;  // of the first look: an operation reads no clock
    bool reported = false;
    std::optional<uint64_t> view_owed;
  };

  Status Gone(int rank, const Progress& progress, const std::string& title) const TFC_REQUIRES(mutex_);
  uint64_t CompletedOn(uint32_t channel, const Slot& slot) const;
  uint64_t CompletedOnAll() const TFC_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<uint32_t, Slot> slots_ TFC_GUARDED_BY(mutex_);
  // In the order in which they left: the first one is the cause of what follows.
  std::vector<std::pair<int, Progress>> departed_ TFC_GUARDED_BY(mutex_);
  std::atomic<uint64_t> unseen_{0};
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_WATCH_H_
