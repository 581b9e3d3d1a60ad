// The arena's own waiter: spins (or yields once), then sleeps on the doorbell.
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/pause.h"
#include "collectives/shm/arena.h"

namespace tfc {
namespace {

using Clock = Deadline::Clock;

class HoldsOrInterrupted : public Condition {
 public:
  HoldsOrInterrupted(const Arena& arena, const Condition& condition) : arena_(arena), condition_(condition) {}
  bool Holds() const override { return arena_.is_interrupted() || condition_.Holds(); }
  int AwaitedRank() const override { return condition_.AwaitedRank(); }

 private:
  const Arena& arena_;
  const Condition& condition_;
};

class ArenaWaiter : public Waiter {
 public:
  ArenaWaiter(Arena& arena, Arena::Sleeper sleeper, int spin_us)
      : arena_(arena), sleeper_(sleeper), spin_(std::chrono::microseconds(std::max(spin_us, 0))) {}

  Status WaitFor(const Condition& condition, Deadline deadline) override {
    const HoldsOrInterrupted ready(arena_, condition);
    if (!Spin(ready, deadline)) Sleep(ready, deadline);
    TFC_RETURN_IF_ERROR(arena_.interrupted());
    if (condition.Holds()) return Status::Ok();
    return Status(Code::kDeadlineExceeded, "");
  }

 private:
  static constexpr int kLooksBetweenClockReadings = 50;

  bool Spin(const Condition& ready, Deadline deadline) const {
    if (ready.Holds()) return true;
    if (spin_.count() == 0) {
      // Ranks share cores: most often the one that is waited for only needs this one, and gets it
      // for a quarter of what sleeping and waking costs.
      sched_yield();
      return ready.Holds();
    }
    // The first looks need no clock: most peers come within a microsecond.
    if (Look(ready)) return true;
    const Clock::time_point end = std::min(Clock::now() + spin_, deadline.when());
    while (!Look(ready)) {
      if (Clock::now() >= end) return ready.Holds();
    }
    return true;
  }

  static bool Look(const Condition& ready) {
    for (int i = 0; i < kLooksBetweenClockReadings; ++i) {
      if (ready.Holds()) return true;
      Pause();
    }
    return false;
  }

  void Sleep(const Condition& ready, Deadline deadline) const {
    while (!ready.Holds() && !deadline.Passed()) arena_.SleepUntilRung(sleeper_, ready, deadline);
  }

  Arena& arena_;
  const Arena::Sleeper sleeper_;
  const Clock::duration spin_;
};

}  // namespace

std::unique_ptr<Waiter> Arena::MakeWaiter(Sleeper sleeper, int spin_us) {
  return std::make_unique<ArenaWaiter>(*this, sleeper, spin_us);
}

}  // namespace tfc
