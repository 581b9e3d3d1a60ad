// How a rank waits for a condition in shared memory.
#ifndef TFCOLLECTIVE_SHM_WAITER_H_
#define TFCOLLECTIVE_SHM_WAITER_H_

#include "base/deadline.h"
#include "base/status.h"

namespace tfc {

// A condition over the arena's flags: cheap, without side effects, true for ever once true.
class Condition {
 public:
  virtual ~Condition() = default;
  virtual bool Holds() const = 0;
};

class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns Ok once the condition holds; DEADLINE_EXCEEDED (with an empty message: the caller knows
  // who is missing) or the status that the arena was interrupted with.
  virtual Status WaitFor(const Condition& condition, Deadline deadline) = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_SHM_WAITER_H_
