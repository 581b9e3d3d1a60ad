// The parts of an Arena. Internal to shm/.
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_IMPL_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_IMPL_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/event_fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/shm/arena.h"
#include "collectives/shm/arena_layout.h"

namespace tfc {

// The mapped memory; unmapped by the last arena that uses it.
class ArenaMapping {
 public:
  static Result<std::shared_ptr<ArenaMapping>> Map(UniqueFd fd, size_t size);
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;

  int fd() const { return fd_.get(); }
  std::byte* base() const { return base_; }

 private:
  ArenaMapping(UniqueFd fd, std::byte* base, size_t size) : fd_(std::move(fd)), base_(base), size_(size) {}

  UniqueFd fd_;
  std::byte* base_;
  size_t size_;
};

struct Arena::Impl {
  Impl(const ArenaShape& shape, std::shared_ptr<ArenaMapping> mapped)
      : shape(shape), layout(shape), mapping(std::move(mapped)), reserved(shape.channels) {
    reserved[0] = true;  // by the leader
  }

  std::byte* base() const { return mapping->base(); }
  Doorbell& doorbell(Sleeper sleeper, int local_rank) const {
    return *reinterpret_cast<Doorbell*>(base() + layout.doorbell(sleeper, local_rank));
  }
  // Wakes the sleeper of that local rank if it sleeps and waits for this rank (or for any).
  void RingIfAwaited(Sleeper sleeper, int local_rank) const;

  const ArenaShape shape;
  const ArenaLayout layout;
  const std::shared_ptr<ArenaMapping> mapping;
  std::shared_ptr<const std::vector<EventFd>> bells;  // by local rank; null: no rank sleeps in poll
  std::vector<std::atomic<bool>> reserved;            // by channel

  std::atomic<bool> interrupted{false};  // set after `cause`
  Mutex mutex;
  Status cause TFC_GUARDED_BY(mutex);
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_IMPL_H_
