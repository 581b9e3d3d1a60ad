// One node's shared memory: flags and staging slots that the ranks of the node read and write.
//
// Memory: a sparse memfd (nothing in the file system, nothing left after SIGKILL), mapped by every
// local rank. It is divided into channels; each channel is an independent stream of operations with
// flags and slots of its own (see arena_channel.h). Flags have one writer each and only grow.
//
// A channel takes memory from Reserve on, 1 MiB for each local rank, and gives the most of it back in
// Release. Memory that is used without being reserved ends the process with SIGBUS where the host or
// the container has none left.
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/event_fd.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/shm/waiter.h"

namespace tfc {

struct ArenaShape {
  int local_rank = 0;
  int local_size = 1;
  uint32_t channels = 64;
  // More local ranks than cores to run them: waits then cost more than reads, and algorithms choose
  // accordingly. What the leader says counts, so that all choose alike; Attach ignores this one.
  bool crowded = false;
};

class Arena {
 public:
  // The thread that sleeps: the caller's thread (channel 0) or the progress thread (all other channels).
  enum class Sleeper : int { kCaller = 0, kProgress = 1 };
  static constexpr int kNumSleepers = 2;

  // Makes the memory (leader) / maps what the leader made. Attach checks size, seals and header. Create fails with
  // RESOURCE_EXHAUSTED where memory is short, and with IO where the system does not allow it.
  static Result<std::unique_ptr<Arena>> Create(const ArenaShape& shape);
  static Result<std::unique_ptr<Arena>> Attach(const ArenaShape& shape, UniqueFd fd);
  // The same mapping as another local rank, for ranks that are threads of one process.
  static Result<std::unique_ptr<Arena>> Share(const Arena& other, int local_rank);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Before this rank uses a channel: allocates its memory. RESOURCE_EXHAUSTED if there is not enough. The channel 0
  // has its memory from the beginning. One thread at a time for each channel.
  Status Reserve(uint32_t channel);
  // When no rank of this node uses the channel any more, and none will before each has called Reserve again: gives the
  // memory of this rank's slots back. Counters of the channel go on as if nothing had happened.
  void Release(uint32_t channel);

  int fd() const;                   // to hand to the peers; borrowed
  const ArenaShape& shape() const;  // with the leader's `crowded`

  // A waiter for one thread at a time: spins for `spin_us` (0: gives the core away once), then sleeps
  // on this rank's doorbell. At most one thread may sleep as each Sleeper. The arena must outlive
  // the waiter.
  std::unique_ptr<Waiter> MakeWaiter(Sleeper sleeper, int spin_us);

  // Lets the progress threads of the node sleep in poll, because they have connections to read: event descriptors that
  // wake them, by local rank, the same ones on all ranks of the node. Before anything sleeps or is published here.
  void HangBells(std::vector<EventFd> bells);
  // That of this rank's progress thread; nullptr without bells.
  const EventFd* bell() const;

  // Wakes this rank's own sleeper: new work, or an interrupt. Any thread.
  void Ring(Sleeper sleeper);
  // Sleeps until this rank's doorbell rings, `ready` holds or the deadline, or a little less. For
  // the progress loop; `ready` is checked after the intent to sleep is published, so no ring is
  // lost. An interrupt rings once: a loop that must end then has it in `ready`.
  void SleepUntilRung(Sleeper sleeper, const Condition& ready, Deadline deadline);

  // The same for a progress thread that sleeps in `poll`, which must return when bell() has been signalled. Returns
  // when `poll` does, or at once if `ready` holds.
  void PollUntilRung(const Condition& ready, const std::function<void()>& poll);

  // Ends all present and later waits of THIS rank with `status`; first one wins. Any thread.
  void Interrupt(const Status& status);
  Status interrupted() const;  // Ok while it is not
  bool is_interrupted() const;

 private:
  friend class ArenaChannel;
  struct Impl;
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_H_
