// The staging rounds of one operation over an arena, with its deadline and its signature. Internal
// to algorithms/.
#ifndef TFCOLLECTIVE_ALGORITHMS_STAGING_ROUNDS_H_
#define TFCOLLECTIVE_ALGORITHMS_STAGING_ROUNDS_H_

#include <cstddef>
#include <cstdint>

#include "algorithms/arena_algorithms.h"
#include "base/status.h"
#include "shm/arena_channel.h"

namespace tfc {

// A round: Open, write slot(), Publish, AwaitStaged, read the peers' slots, Close. In the operation's
// first round AwaitStaged waits for all ranks and compares their signatures, so no byte is used
// before everybody is known to do the same.
class StagingRounds {
 public:
  explicit StagingRounds(const ArenaContext& context);

  int local_rank() const { return channel_.local_rank(); }
  int local_size() const { return channel_.local_size(); }
  size_t segment_size() const { return channel_.segment_size(); }

  // Waits until this round's slot may be written.
  Status Open();
  std::byte* slot() const { return channel_.slot(round()); }
  void Publish() { channel_.PublishStaged(round(), signature_); }
  Status AwaitStaged(int local_rank = PhaseDone::kAllRanks);
  const std::byte* peer_slot(int local_rank) const { return channel_.peer_slot(local_rank, round()); }
  void PublishReduced() { channel_.PublishReduced(round()); }
  Status AwaitReduced();
  void Close() { ++*context_.round; }

  // A whole round in which nothing is staged and nobody is waited for.
  Status Pass();

 private:
  uint64_t round() const { return *context_.round; }
  Status Await(PhaseDone::Phase phase, int local_rank);
  Status CompareSignatures() const;

  const ArenaContext& context_;
  const ArenaChannel channel_;
  const uint64_t first_round_;
  const uint64_t signature_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_ALGORITHMS_STAGING_ROUNDS_H_
