// Ranks that have run out of data ("joined"): who they are, from which operation of each channel on
// they only contribute zeros, and to which operations. No I/O.
//
// An operation that a joined rank is missing from cannot end without it. A rank that runs one tells
// rank 0, and rank 0 tells the joined ranks to take part with zeros, but only once every rank has
// acknowledged who has joined: a rank that completes such an operation therefore knows how many ranks
// have contributed to it.
#ifndef TFCOLLECTIVE_EXECUTOR_JOINING_H_
#define TFCOLLECTIVE_EXECUTOR_JOINING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "communicator/operation.h"
#include "executor/frontier.h"

namespace tfc {

// An operation that joined ranks have to take part in.
struct ZeroContribution {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  Operation operation;  // without memory
  uint64_t bytes = 0;   // of its input
};

// The same operation without its memory.
ZeroContribution ZeroContributionOf(uint32_t channel, uint64_t sequence, const Operation& operation);

// True if zeros of a joined rank leave the result right: an all-reduce with Average or Sum.
bool TakesZeroContributions(const Operation& operation);

// One rank's knowledge of the joined ranks. Thread-safe.
class JoinedRanks final : public Contributors {
 public:
  explicit JoinedRanks(int size) : size_(size) {}

  // At least 1: a contribution of zeros, whose result is not read, may find none.
  int Count(uint32_t channel, uint64_t sequence) const override {
    return any() ? std::max(1, ContributorsOf(channel, sequence).now) : size_;
  }

  // `rank` had completed `progress` when it joined.
  void Add(int rank, const Progress& progress);
  // All have joined: all are back.
  void Clear();

  bool any() const { return any_.load(); }
  bool Needs(uint32_t channel, uint64_t sequence) const;
  std::vector<int> ranks() const;

  // The number of ranks that contribute to an operation, and the number that would if no rank had joined just before
  // it. All ranks know the second number when the operation begins, the first one only when it has ended.
  struct Numbers {
    int now = 0;
    int before = 0;
  };
  Numbers ContributorsOf(uint32_t channel, uint64_t sequence) const;

 private:
  const int size_;
  std::atomic<bool> any_{false};
  mutable Mutex mutex_;
  std::map<int, Progress> joined_ TFC_GUARDED_BY(mutex_);
};

// Ranks that have joined, by what each had completed.
using Joins = std::map<int, Progress>;

// Rank 0's tracker: which joins all ranks hear of, and who hears of which contribution of zeros, and when. No clock.
// Not thread-safe.
//
// A join is announced only when it matters: when the rank is missing from an operation that other ranks run, or when no
// announced join makes them ask here for the operations that it is missing from. And joins are announced together: not
// before all ranks have acknowledged the last announcement, nor before a pause that grows with the number of ranks. So
// a thousand ranks that join cost each rank a few messages, not a thousand. What a message costs here does not depend
// on how many ranks there are, but for orders and announcements, which are messages themselves.
class JoinTracker {
 public:
  using Time = Deadline::Clock::time_point;

  // A contribution of zeros, and the joined ranks that shall take part in it.
  struct Order {
    ZeroContribution contribution;
    std::vector<int> ranks;
  };

  explicit JoinTracker(int size) : size_(size) {}

  // `rank` has joined. True if all have now.
  bool Join(int rank, const Progress& progress);
  bool joined(int rank) const { return known_.count(rank) + unannounced_.count(rank) != 0; }
  // When there is something to announce; nothing: perhaps after other calls.
  std::optional<Time> due() const;
  // What must be sent to all ranks now, each of which then acknowledges it once. Empty: nothing yet.
  Joins TakeAnnouncement(Time now);
  // A rank knows what was announced. What may be ordered now.
  std::vector<Order> Acknowledge();
  // A rank runs an operation that joined ranks are missing from. What may be ordered now. It asks again whenever joins
  // are announced while it does.
  std::vector<Order> Ask(ZeroContribution contribution);
  void Clear();

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // channel, sequence
  bool MissesWhatWasAskedFor(const Progress& progress) const;
  void OrderInto(ZeroContribution contribution, std::vector<Order>* orders);

  const int size_;
  Joins unannounced_;
  Frontier unannounced_frontier_;
  bool announce_ = false;
  Time announce_from_{};  // not before that
  int unacknowledged_ = 0;
  Frontier frontier_;                   // of the announced ones
  std::vector<ZeroContribution> held_;  // until all ranks have acknowledged, each once
  std::set<Place> held_places_;
  Progress asked_;    // of each channel: the first operation that no rank has asked for
  Progress ordered_;  // the same, of what all announced ranks were sent
  Joins known_;       // announced: of each rank the first operation of each channel that it was not sent
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_JOINING_H_
