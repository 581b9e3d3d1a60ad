// Ranks that have run out of data ("joined"): who they are, from which operation of each channel on
// they only stand in with zeros, and what they have to stand in for. No I/O.
//
// An operation that a joined rank is missing from cannot end without it. A rank that runs one tells
// rank 0, and rank 0 tells the joined ranks to take part with zeros, but only once every rank has
// acknowledged who has joined: whoever completes such an operation therefore knows how many ranks
// have contributed to it.
#ifndef TFCOLLECTIVE_ENGINE_JOINING_H_
#define TFCOLLECTIVE_ENGINE_JOINING_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "communicator/operation.h"
#include "engine/watch.h"

namespace tfc {

// An operation that joined ranks have to take part in.
struct StandIn {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  Operation operation;  // without memory
  uint64_t bytes = 0;   // of its input
};

// The same operation without its memory.
StandIn StandInOf(uint32_t channel, uint64_t sequence, const Operation& operation);

// Whether zeros of a joined rank leave the result right: an all-reduce with Average or Sum.
bool TakesStandIns(const Operation& operation);

// What one rank knows about the joined ones. Thread-safe.
class JoinedRanks {
 public:
  explicit JoinedRanks(int size) : size_(size) {}

  // `rank` had completed `progress` when it joined.
  void Add(int rank, const Progress& progress);
  // All have joined: all are back.
  void Clear();

  // Cheap: for every operation's way.
  bool any() const { return any_.load(); }
  bool Needs(uint32_t channel, uint64_t sequence) const;
  std::vector<int> ranks() const;

  // How many ranks contribute to an operation, and how many would if nobody had joined just before it. All
  // ranks know the second number when the operation begins, the first one only when it has ended.
  struct Contributors {
    int now = 0;
    int before = 0;
  };
  Contributors ContributorsOf(uint32_t channel, uint64_t sequence) const;

 private:
  const int size_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<int, Progress> joined_;
};

// Rank 0's desk: who hears of which stand-in, and when. Not thread-safe.
class JoinDesk {
 public:
  using Order = std::pair<int, StandIn>;  // a joined rank, and what it shall do

  explicit JoinDesk(int size) : size_(size) {}

  // True if all ranks have joined now.
  bool Join(int rank, const Progress& progress);
  bool joined(int rank) const { return next_.count(rank) != 0; }
  // A rank knows of one more joined rank. What may be ordered now.
  std::vector<Order> Acknowledge();
  // A rank runs an operation that joined ranks are missing from. What may be ordered now.
  std::vector<Order> Ask(StandIn stand_in);
  void Clear();

 private:
  std::vector<Order> OrdersFor(const StandIn& stand_in);

  const int size_;
  int unacknowledged_ = 0;
  std::vector<StandIn> held_;
  // Of each joined rank: the first operation of each channel that it was not told of.
  std::map<int, Progress> next_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_ENGINE_JOINING_H_
