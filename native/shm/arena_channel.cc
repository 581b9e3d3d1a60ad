#include "shm/arena_channel.h"

#include "shm/arena_impl.h"

namespace tfc {

ArenaChannel::ArenaChannel(Arena& arena, uint32_t channel)
    : arena_(arena),
      base_(arena.impl_->base() + arena.impl_->layout.slot(channel, 0, 0)),
      slot_stride_(arena.impl_->layout.slot_stride),
      local_rank_(arena.impl_->shape.local_rank),
      local_size_(arena.impl_->shape.local_size),
      sleeper_(channel == 0 ? Arena::Sleeper::kCaller : Arena::Sleeper::kProgress) {}

void ArenaChannel::PublishStaged(uint64_t round, uint64_t signature) const {
  SlotFlags& own = flags(local_rank_, round);
  own.signature.store(signature, std::memory_order_relaxed);
  own.staged.store(round + 1);
  WakePeers();
}

void ArenaChannel::PublishReduced(uint64_t round) const {
  flags(local_rank_, round).reduced.store(round + 1);
  WakePeers();
}

void ArenaChannel::WakePeers() const {
  for (int rank = 0; rank < local_size_; ++rank) {
    if (rank != local_rank_) RingIfAwaited(arena_.impl_->doorbell(sleeper_, rank), local_rank_);
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
