// Waits for a condition in shared memory.
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_WAITER_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_WAITER_H_

#include "base/deadline.h"
#include "base/status.h"

namespace tfc {

// A condition over the arena's flags: cheap, without side effects, true for ever once true. Reads
// the flags with sequential consistency (as ArenaChannel does): the proof that no wake-up is lost
// needs it.
class Condition {
 public:
  static constexpr int kAnyRank = -1;

  virtual ~Condition() = default;
  virtual bool Holds() const = 0;
  // A local rank without which the condition cannot hold, while it does not; the waiter then sleeps
  // through what other ranks publish.
  virtual int AwaitedRank() const { return kAnyRank; }
};

class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns Ok once the condition holds; DEADLINE_EXCEEDED (with an empty message: the caller knows
  // who is missing) or the status that the arena was interrupted with.
  virtual Status WaitFor(const Condition& condition, Deadline deadline) = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_WAITER_H_
