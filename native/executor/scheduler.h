// The progress thread: runs the tasks of every channel in order, and channels independently of each
// other.
//
// Each channel's tasks run on one fiber, as ordinary blocking code over the Resources they are
// given. When a task has to wait, the thread goes on with the other channels; when all wait, or there
// are none, it sleeps in the transport's poll, so that connections are always read: a peer's early
// messages do not depend on what this rank does. Only where all ranks share one node's memory, and no
// connections, does it sleep on this rank's doorbell in the arena. Idle costs nothing. Where there is no
// memory for a fiber's stack, tasks that have to wait fail.
#ifndef TFCOLLECTIVE_EXECUTOR_SCHEDULER_H_
#define TFCOLLECTIVE_EXECUTOR_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "base/deadline.h"
#include "base/status.h"
#include "collectives/algorithms/link.h"
#include "collectives/shm/arena.h"
#include "collectives/transport/transport.h"
#include "communicator/execute.h"

namespace tfc {

// The functions of a transport that the scheduler needs besides the Transport interface.
struct PolledTransport {
  Transport* transport = nullptr;
  // Drives traffic until something happens, wake(), the arena's bell or the deadline; `spin`: looks again for a while
  // before it sleeps. After an error it never sleeps again.
  std::function<Status(Deadline, bool spin)> poll;
  std::function<void()> wake;  // any thread
};

class Scheduler {
 public:
  // Runs on the channel's fiber. `channel` holds the channel's counters.
  using Task = std::function<void(const Resources& resources, Channel* channel)>;

  // `arena` may be nullptr; without bells, tasks must not use the transport. All must outlive the scheduler.
  Scheduler(PolledTransport transport, Arena* arena, int spin_us);
  ~Scheduler();  // Stop() must have been called if Start() was
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  Status Start();
  // Any thread, never blocks. After Stop the task is dropped unrun and false returned.
  bool Submit(uint32_t channel, Task task);
  // Any thread, never blocks: `call` runs on the progress thread's own stack. After Stop it is dropped unrun and false
  // returned.
  bool Call(std::function<void()> call);
  // From a task: runs `call` on the progress thread's own stack instead of the fiber's, which is small, and returns
  // when it is over. On every other thread: runs it as any function.
  void CallOutside(const std::function<void()>& call);
  // What tasks know of the transport from now on. Progress thread only.
  void SetLink(const Link& link);
  // Runs what has been submitted to its end and ends the thread. The caller has made sure that
  // no task waits for ever (interrupted the transport and the arena).
  void Stop();
  // True if the calling thread is the progress thread, which cannot Stop.
  bool IsProgress() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_SCHEDULER_H_
