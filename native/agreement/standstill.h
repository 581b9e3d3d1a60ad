// Finds the deadlock of a whole world: every rank waits, each in an operation that another one has not called. Pure: no
// I/O, no clock. Rank 0 is told which ranks stand still; a rank that computes says nothing, and while one does not
// stand still nothing is decided.
#ifndef TFCOLLECTIVE_AGREEMENT_STANDSTILL_H_
#define TFCOLLECTIVE_AGREEMENT_STANDSTILL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace tfc {

// An operation that a rank has begun and that has not ended there.
struct Running {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  uint64_t signature = 0;  // what it is: the same on all ranks, or they wait for each other
  std::string title;
};

// The report of a rank that has done nothing but wait for a while.
struct Standstill {
  bool holds = false;                      // false: it goes on
  uint64_t begun = 0;                      // operations by name and buckets that it has begun
  std::map<uint32_t, uint64_t> completed;  // operations that have ended there, by channel
  std::vector<Running> running;            // what it is in; it may also wait for a decision of rank 0
};

bool operator==(const Running& a, const Running& b);
bool operator==(const Standstill& a, const Standstill& b);

// Of each rank that waits for rank 0's decision, the operation that others have not asked for.
using Undecided = std::map<int, std::string>;

// MISMATCH, in words, if no rank can go on. Ok if one may: it is missing, or has come to an operation to which all
// have.
Status Deadlock(int world_size, const std::map<int, Standstill>& said, const Undecided& undecided);

// Rank 0's record of what the ranks say. Words of different times can make a deadlock that never was: before it is
// taken for one, all ranks are asked once more. Those that still say the same stood still when they were asked.
class StandstillRecord {
 public:
  enum class Next { kNothing, kAskAll, kFail };

  explicit StandstillRecord(int world_size) : world_size_(world_size) {}

  // A rank has said this. kFail: failure() says why.
  Next Take(int rank, Standstill standstill, const Undecided& undecided);
  const Status& failure() const { return failure_; }

 private:
  const int world_size_;
  std::map<int, Standstill> said_;
  std::optional<std::set<int>> confirmed_;  // once all were asked: those that have said it again
  Status failure_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_AGREEMENT_STANDSTILL_H_
