// Records what one rank did and when: the operations of a communicator and its callers' own intervals, in memory.
#ifndef TFCOLLECTIVE_EXECUTOR_TIMELINE_H_
#define TFCOLLECTIVE_EXECUTOR_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>

#include "base/mutex.h"
#include "communicator/operation.h"

namespace tfc {

// Times are nanoseconds of CLOCK_MONOTONIC, as Deadline's clock gives them.
int64_t MonotonicNanoseconds();

// One interval. Operations of all ranks with equal channel and sequence are one collective.
struct TimelineEvent {
  static constexpr int32_t kCallers = -1;  // `collective` of an interval that is no operation

  int32_t collective = kCallers;
  uint32_t channel = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  int64_t submitted_ns = 0;  // handed over by the caller
  int64_t began_ns = 0;      // its turn on its channel
  int64_t ended_ns = 0;
  std::string name;
};

// Off until started; an operation then costs one relaxed load. Thread-safe.
class Timeline {
 public:
  struct Recorded {
    std::deque<TimelineEvent> events;  // oldest first
    uint64_t dropped = 0;              // older ones that did not fit
  };

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Begins anew: keeps the last `capacity` events from here on.
  void Start(size_t capacity);
  // Does nothing when off.
  void Add(TimelineEvent event);
  // Ends the recording and gives it away.
  Recorded Stop();

 private:
  std::atomic<bool> on_{false};
  Mutex mutex_;
  size_t capacity_ TFC_GUARDED_BY(mutex_) = 0;
  Recorded recorded_ TFC_GUARDED_BY(mutex_);
};

// The event of an operation that ends now.
TimelineEvent OperationEvent(const Operation& operation, uint32_t channel, uint64_t sequence, int64_t began_ns);

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_TIMELINE_H_
