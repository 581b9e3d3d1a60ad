#include "executor/timeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/deadline.h"

namespace tfc {

int64_t MonotonicNanoseconds() {
  const auto now = Deadline::Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void Timeline::Start(size_t capacity) {
  const MutexLock lock(mutex_);
  capacity_ = std::max<size_t>(capacity, 1);
  recorded_ = Recorded();
  on_.store(true, std::memory_order_relaxed);
}

void Timeline::Add(TimelineEvent event) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!on()) return;
  if (recorded_.events.size() == capacity_) {
    recorded_.events.pop_front();
    ++recorded_.dropped;
  }
  recorded_.events.push_back(std::move(event));
}

Timeline::Recorded Timeline::Stop() {
  const MutexLock lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  return std::exchange(recorded_, Recorded());
}

TimelineEvent OperationEvent(const Operation& operation, uint32_t channel, uint64_t sequence, int64_t began_ns) {
  TimelineEvent event;
  event.collective = static_cast<int32_t>(operation.collective);
  event.channel = channel;
  event.sequence = sequence;
  event.bytes = TotalSize(operation.input);
  event.submitted_ns = operation.submitted_ns == 0 ? began_ns : operation.submitted_ns;
  event.began_ns = began_ns;
  event.ended_ns = MonotonicNanoseconds();
  event.name = operation.name;
  return event;
}

}  // namespace tfc
