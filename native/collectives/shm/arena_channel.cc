#include "collectives/shm/arena_channel.h"

#include "collectives/shm/arena_impl.h"

namespace tfc {

ArenaChannel::ArenaChannel(Arena& arena, uint32_t channel)
    : arena_(arena),
      base_(arena.impl_->base() + arena.impl_->layout.slot(channel, 0, 0)),
      slot_stride_(arena.impl_->layout.slot_stride),
      local_rank_(arena.impl_->shape.local_rank),
      local_size_(arena.impl_->shape.local_size),
      sleeper_(channel == 0 ? Arena::Sleeper::kCaller : Arena::Sleeper::kProgress) {}

void ArenaChannel::PublishReduced(uint64_t round) const {
  flags(local_rank_, round).reduced.store(round + 1, std::memory_order_release);
  WakePeers();
}

// The fence stands between the flag's store and the look at who sleeps: see Arena::Impl::RingIfAwaited.
void ArenaChannel::WakePeers() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < local_size_; ++rank) {
    if (rank != local_rank_) arena_.impl_->RingIfAwaited(sleeper_, rank);
  }
}

std::vector<int> PhaseDone::Missing() const {
  std::vector<int> missing;
  for (int rank = next_; rank < end_; ++rank) {
    if (!Done(rank)) missing.push_back(rank);
  }
  return missing;
}

}  // namespace tfc
