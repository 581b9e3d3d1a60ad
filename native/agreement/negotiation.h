// Which operation runs next everywhere: rank 0's table of who has asked for what. Pure: no I/O, no
// clock of its own. Event driven: a verdict falls when the last rank asks.
#ifndef TFCOLLECTIVE_AGREEMENT_NEGOTIATION_H_
#define TFCOLLECTIVE_AGREEMENT_NEGOTIATION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/rank_texts.h"
#include "base/status.h"

namespace tfc {

// One rank's wish to run the operation (or to begin the plan) of this name.
struct Request {
  std::string name;
  bool is_plan = false;
  uint64_t signature = 0;
  std::string view;        // what the rank asks for, for people; what follows a tab in a line is not compared
  double timeout_s = 0.0;  // from the first rank's wish
  bool takes_zero_contributions = false;  // joined ranks may be missing
};

inline constexpr uint32_t kNoPlanChannel = 0;

// What all ranks do now.
struct Verdict {
  std::string name;
  bool is_plan = false;
  uint32_t channel = 0;  // of a plan that begins; kNoPlanChannel: none is free, its buckets are matched by name
  Status refusal;        // Ok: run it
  // Not kNoPeer: the one rank that the verdict is for. Another one that has forgotten the plan, and asks for it again,
  // may not take it for its own: the channel may be free before it is heard.
  int only_rank = kNoPeer;
};

class NegotiationTable {
 public:
  // Plans get channels from `first_plan_channel` on.
  NegotiationTable(int world_size, uint32_t first_plan_channel, uint32_t max_plans);

  // The verdict, if `rank` was the last one missing for this name.
  std::optional<Verdict> Arrive(int rank, Request request, Deadline::Clock::time_point now);

  // The entry that has waited longest beyond its timeout: DEADLINE_EXCEEDED naming the missing
  // ranks. Ok if there is none.
  Status Overdue(Deadline::Clock::time_point now) const;
  // Texts about entries that have waited for `seconds` and were not reported before.
  std::vector<std::string> Stalled(Deadline::Clock::time_point now, double seconds);

  // `rank` does not need the plan any longer; it may ask for it again. The channel that is free now, if the plan had
  // one and no other rank holds it.
  std::optional<uint32_t> Forget(int rank, const std::string& plan);

  // `rank` asks for nothing more until Return: what only it was missing from is decided now.
  std::vector<Verdict> Join(int rank);
  void Return();

  // Whether a rank, or this one, waits for the operation of this name.
  bool Waits(const std::string& name) const { return entries_.count(Key{false, name}) != 0; }
  bool Waits(const std::string& name, int rank) const;
  // What the ranks that wait for it ask for; empty if none does.
  std::map<int, std::string> Views(const std::string& name) const;

  size_t waiting() const { return entries_.size(); }

 private:
  struct Entry {
    std::map<int, Request> requests;
    Deadline::Clock::time_point since;
    size_t absent = 0;  // joined ranks that have not asked
    bool reported = false;
  };
  using Key = std::pair<bool, std::string>;

  // The plan of this name as the ranks have agreed on it.
  struct Agreed {
    Request request;
    uint32_t channel = 0;
    std::set<int> ranks;  // that have asked for it and not forgotten it
  };

  bool Complete(const Entry& entry) const;
  Verdict Decide(const Key& key, const Entry& entry);
  std::optional<Verdict> JoinPlan(int rank, const Request& request);
  std::string MissingRanks(const Entry& entry) const;
  int FirstMissing(const Entry& entry) const;
  // What a rank that is missing from `entry` has waited in for the longest time; empty if none waits in this table.
  std::string Elsewhere(const Entry& entry) const;

  const int world_size_;
  std::set<uint32_t> free_channels_;
  std::set<int> joined_;
  std::map<std::string, Agreed> agreed_;
  // A name can be asked for again before all ranks have asked once: one entry a round.
  std::map<Key, std::deque<Entry>> entries_;
};

// The refusal of an operation in which zeros of the ranks that have joined would make no sense.
Status Unjoinable(const std::string& what, const std::vector<int>& joined);

}  // namespace tfc

#endif  // TFCOLLECTIVE_AGREEMENT_NEGOTIATION_H_
