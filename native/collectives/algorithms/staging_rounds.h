// The staging rounds of one operation over an arena, with its deadline and its signature. Internal
// to algorithms/.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_STAGING_ROUNDS_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_STAGING_ROUNDS_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/shm/arena_channel.h"

namespace tfc {

// The rounds of the operation are numbered from 0. A round: Open, write slot(), Publish,
// AwaitStaged, read the peers' slots, Close. Rounds are opened and closed in order; one may be opened
// before others are closed, but at most kRunAhead may be open. In round 0 AwaitStaged waits for all
// ranks and compares their signatures, so no byte is used before everybody is known to do the same.
class StagingRounds {
 public:
  static constexpr uint64_t kRunAhead = ArenaChannel::kRunAhead;

  // `bytes`: of the operation, where that is all that a rank ever stages.
  explicit StagingRounds(const ArenaContext& context, size_t bytes = SIZE_MAX);

  int local_rank() const { return channel_.local_rank(); }
  int local_size() const { return channel_.local_size(); }
  bool crowded() const { return channel_.crowded(); }
  size_t segment_size() const { return channel_.segment_size(); }

  // Waits until the slot of the round may be written / does not wait.
  Status Open(uint64_t round) { return Await(PhaseDone::Phase::kReusable, round, PhaseDone::kAllRanks); }
  bool CanOpen(uint64_t round) const { return Holds(PhaseDone::Phase::kReusable, round); }
  std::byte* slot(uint64_t round) const {
    return tiny_ ? channel_.tiny_slot(first_ + round) : channel_.slot(first_ + round);
  }
  void Publish(uint64_t round) { channel_.PublishStaged(first_ + round, signature_); }

  // Publish(0) and AwaitStaged(0), where nothing can be done in between. Peers are looked for before those that sleep
  // are woken: most often all come at the same time, and the fence that waking needs then costs little.
  Status PublishAndAwait();

  Status AwaitStaged(uint64_t round, int local_rank = PhaseDone::kAllRanks);
  bool IsStaged(uint64_t round) const { return Holds(PhaseDone::Phase::kStaged, round); }
  const std::byte* peer_slot(int local_rank, uint64_t round) const {
    return tiny_ ? channel_.tiny_peer_slot(local_rank, first_ + round) : channel_.peer_slot(local_rank, first_ + round);
  }

  void PublishReduced(uint64_t round) { channel_.PublishReduced(first_ + round); }
  Status AwaitReduced(uint64_t round) { return Await(PhaseDone::Phase::kReduced, round, PhaseDone::kAllRanks); }
  bool IsReduced(uint64_t round) const { return Holds(PhaseDone::Phase::kReduced, round); }

  void Close(uint64_t round) { *context_.round = first_ + round + 1; }

  // The one round of an operation on no bytes: nothing is staged and no rank is waited for.
  Status Pass();

 private:
  bool Holds(PhaseDone::Phase phase, uint64_t round) const {
    return PhaseDone(channel_, phase, first_ + round).Holds();
  }
  Status Await(PhaseDone::Phase phase, uint64_t round, int local_rank);
  Status CompareSignatures() const;

  const ArenaContext& context_;
  const ArenaChannel channel_;
  const uint64_t first_;  // the channel's number of round 0
  static constexpr int kLooksBeforeWaking = 100;

  const bool tiny_;
  const uint64_t signature_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_STAGING_ROUNDS_H_
