// What the ranks tell each other about operations on GPUs, by way of rank 0. NCCL itself checks nothing: ranks that
// call different things would hang or compute nonsense. Pure: no I/O, no clock.
#ifndef TFCOLLECTIVE_BACKENDS_NCCL_ROUNDS_H_
#define TFCOLLECTIVE_BACKENDS_NCCL_ROUNDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace tfc {

// One rank has come to an operation.
struct RoundEntry {
  std::string key;         // of the operation: its name, or its place in the order of direct calls
  uint64_t signature = 0;  // equal where the ranks ask for the same
  std::string view;        // what the rank asks for, for people
  std::string blob;        // what the other ranks want to know of this one; opaque here
};

// All ranks have come to it.
struct RoundVerdict {
  std::string key;
  Status refusal;                  // Ok: they agree
  std::vector<std::string> blobs;  // one a rank
};

// Rank 0's table of who has come to what.
class RoundTable {
 public:
  explicit RoundTable(int world_size) : world_size_(world_size) {}

  // The verdict, if `rank` was the last one missing.
  std::optional<RoundVerdict> Arrive(int rank, RoundEntry entry);
  // `rank` comes to nothing any more. PEER_LOST naming it if another rank waits for it.
  Status Leave(int rank);
  // Keys that begin so mean nothing any more: what ranks still say of them is forgotten.
  void Close(char prefix);
  bool HasLeft(int rank) const { return left_.count(rank) != 0; }
  // PEER_LOST if one who has left is missing for `key`.
  Status Deserted(const std::string& key) const;
  // Whether a rank waits for the others at `key`.
  bool Waits(const std::string& key) const { return rounds_.count(key) != 0; }
  // Whether a rank that waits for the others at `key` fulfils `condition`, bool(int rank). Asked again and again while
  // ranks arrive, it looks first at the one that it found before, and so not at all of them each time.
  template <typename Condition>
  bool AnyWaits(const std::string& key, const Condition& condition);
  // What those who wait for the others at `key` ask for; empty where no rank waits.
  std::map<int, std::string> Views(const std::string& key) const;
  // Who has not come to `key` while others wait; empty where no rank waits.
  std::vector<int> Missing(const std::string& key) const;

 private:
  struct Round {
    std::map<int, RoundEntry> entries;
    size_t left = 0;      // of them, from ranks that have left since
    int found = kNoPeer;  // by AnyWaits
  };
  std::vector<int> MissingIn(const Round& round) const;
  Status DesertedIn(const std::string& key, const Round& round) const;
  RoundVerdict Decide(const std::string& key, const Round& round) const;

  const int world_size_;
  std::set<int> left_;
  std::set<char> closed_;
  // A name can be used again before all ranks have used it once: one round a use.
  std::map<std::string, std::deque<Round>> rounds_;
};

template <typename Condition>
bool RoundTable::AnyWaits(const std::string& key, const Condition& condition) {
  const auto queue = rounds_.find(key);
  if (queue == rounds_.end()) return false;
  Round& round = queue->second.front();
  if (round.found != kNoPeer && condition(round.found)) return true;
  const auto found = std::find_if(round.entries.begin(), round.entries.end(),
                                  [&condition](const auto& entry) { return condition(entry.first); });
  round.found = found == round.entries.end() ? kNoPeer : found->first;
  return round.found != kNoPeer;
}

// The notes in which all this travels.
struct Note {
  enum class Kind : uint8_t {
    kEntry = 1,    // -> 0
    kVerdict = 2,  // 0 -> all
    kLeave = 3,    // -> 0, and 0 -> all when rank 0 leaves
    kOverdue = 4,  // -> 0: `key` has taken too long; `status` says what waits
  };
  Kind kind = Kind::kEntry;
  RoundEntry entry;
  RoundVerdict verdict;
  Status status;
};

std::string EncodeEntry(const RoundEntry& entry);
std::string EncodeVerdict(const RoundVerdict& verdict);
std::string EncodeLeave();
std::string EncodeOverdue(const std::string& key, const Status& status);
// PROTOCOL for bytes that are no note of this world.
Status DecodeNote(const std::string& bytes, int world_size, Note* note);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BACKENDS_NCCL_ROUNDS_H_
