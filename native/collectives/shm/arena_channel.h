// One channel of an arena: staging rounds.
//
// In round k every local rank may write its slot of that round and then publishes it (also when it
// had nothing to write); peers that have seen the flag read the slot. A second flag says that the
// rank's part of the slot has been replaced by a reduced one. A rank publishes a round only when it
// has finished reading the round kRunAhead before it. So once all peers have published round
// k - kSlots + kRunAhead, no rank reads round k - kSlots any longer, and its slot may be written again as
// that of round k.
//
// A view without state: cheap to make and to copy. Rounds count up from 0. What peers write is never
// used as a length or a position.
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_CHANNEL_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/shm/arena.h"
#include "collectives/shm/arena_layout.h"
#include "collectives/shm/waiter.h"

namespace tfc {

class ArenaChannel {
 public:
  static constexpr uint64_t kSlots = ArenaLayout::kSlots;
  static constexpr uint64_t kRunAhead = 3;

  // `channel` must be one of the arena's.
  ArenaChannel(Arena& arena, uint32_t channel);

  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  bool crowded() const { return arena_.shape().crowded; }
  size_t segment_size() const { return ArenaLayout::kSegmentSize; }  // bytes of a slot; a multiple of 4096

  std::byte* slot(uint64_t round) const { return bytes(local_rank_, round); }  // to write, before publishing
  const std::byte* peer_slot(int local_rank, uint64_t round) const { return bytes(local_rank, round); }
  // The same for an operation of at most kTinySize bytes; all ranks choose alike.
  static constexpr size_t kTinySize = SlotFlags::kTinySize;
  std::byte* tiny_slot(uint64_t round) const { return flags(local_rank_, round).tiny; }
  const std::byte* tiny_peer_slot(int local_rank, uint64_t round) const { return flags(local_rank, round).tiny; }

  // Makes what was written to the slot visible; wakes peers that sleep for it. `signature` says what
  // this rank takes the round for.
  void PublishStaged(uint64_t round, uint64_t signature) const {
    StoreStaged(round, signature);
    WakePeers();
  }
  // The same in two parts: peers that look see it after the first, peers that sleep are woken by the second.
  void StoreStaged(uint64_t round, uint64_t signature) const {
    SlotFlags& own = flags(local_rank_, round);
    own.signature.store(signature, std::memory_order_relaxed);
    own.staged.store(round + 1, std::memory_order_release);
  }
  void WakePeers() const;
  void PublishReduced(uint64_t round) const;

  bool IsStaged(int local_rank, uint64_t round) const { return flags(local_rank, round).staged.load() > round; }
  bool IsReduced(int local_rank, uint64_t round) const { return flags(local_rank, round).reduced.load() > round; }
  // Valid once the rank has staged the round and while this rank has not finished it.
  uint64_t Signature(int local_rank, uint64_t round) const { return flags(local_rank, round).signature.load(); }
  // True if that rank cannot still read what was written kSlots rounds ago.
  bool IsReusable(int local_rank, uint64_t round) const {
    return round < kSlots || IsStaged(local_rank, round - kSlots + kRunAhead);
  }

 private:
  std::byte* at(int local_rank, uint64_t round) const {
    return base_ + (static_cast<size_t>(local_rank) * kSlots + round % kSlots) * slot_stride_;
  }
  SlotFlags& flags(int local_rank, uint64_t round) const {
    return *reinterpret_cast<SlotFlags*>(at(local_rank, round));
  }
  std::byte* bytes(int local_rank, uint64_t round) const { return at(local_rank, round) + sizeof(SlotFlags); }

  Arena& arena_;
  std::byte* base_;  // of this channel
  size_t slot_stride_;
  int local_rank_;
  int local_size_;
  Arena::Sleeper sleeper_;
};

// Holds once all ranks of interest have done the phase of the round.
class PhaseDone : public Condition {
 public:
  enum class Phase { kReusable, kStaged, kReduced };
  static constexpr int kAllRanks = -1;

  PhaseDone(const ArenaChannel& channel, Phase phase, uint64_t round, int local_rank = kAllRanks)
      : channel_(channel),
        phase_(phase),
        round_(round),
        next_(local_rank == kAllRanks ? 0 : local_rank),
        end_(local_rank == kAllRanks ? channel.local_size() : local_rank + 1) {}

  bool Holds() const override {
    while (next_ < end_ && Done(next_)) ++next_;
    return next_ == end_;
  }
  int AwaitedRank() const override { return Holds() ? kAnyRank : next_; }
  // The ranks that are missing now, in ascending order.
  std::vector<int> Missing() const;

 private:
  bool Done(int local_rank) const {
    switch (phase_) {
      case Phase::kReusable:
        return channel_.IsReusable(local_rank, round_);
      case Phase::kStaged:
        return channel_.IsStaged(local_rank, round_);
      default:
        return channel_.IsReduced(local_rank, round_);
    }
  }

  const ArenaChannel& channel_;
  const Phase phase_;
  const uint64_t round_;
  mutable int next_;  // all before it are done, for ever
  const int end_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_CHANNEL_H_
