// Decides what runs next on all ranks: rank 0's table of which rank has asked for what, in the host's memory and on
// GPUs. No I/O, no clock of its own. Event driven: the decision falls when the last rank asks.
#ifndef TFCOLLECTIVE_AGREEMENT_NEGOTIATION_H_
#define TFCOLLECTIVE_AGREEMENT_NEGOTIATION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agreement/standstill.h"
#include "base/deadline.h"
#include "base/rank_texts.h"
#include "base/status.h"

namespace tfc {

// The kind of thing that a name stands for.
enum class Subject : uint8_t {
  kOperation = 0,   // matched by name
  kPlan = 1,        // a bucket plan
  kDirectCall = 2,  // on GPUs, by its number; those in the host's memory check each other
  kSetup = 3,       // of a stream of operations on GPUs
};

// One rank's request to run, or to begin, the operation of this name.
struct Request {
  Subject subject = Subject::kOperation;
  std::string name;
  bool on_gpus = false;  // the ranks must agree on it
  uint64_t signature = 0;
  std::string view;          // the rank's request as text; the part of a line after a tab is not compared
  double timeout_s = 0.0;    // from its arrival; the first one to pass ends the waiting
  bool takes_zeros = false;  // zeros may stand for joined ranks
  std::string blob;          // what every rank wants to know of this one; opaque here
  Status objection;          // of a set-up: why this rank cannot use GPUs. Nothing runs on them then
};

inline constexpr uint32_t kNoPlanChannel = 0;

// The decision that all ranks carry out now.
struct Decision {
  Subject subject = Subject::kOperation;
  std::string name;
  bool on_gpus = false;
  uint32_t channel = 0;  // of a plan that begins; kNoPlanChannel: none is free, its buckets are matched by name
  Status refusal;        // Ok: run it
  std::vector<std::string> blobs;  // one a rank; none if all are empty
  // Not kNoPeer: the one rank that the decision is for. Another one that has forgotten the plan, and asks for it again,
  // may not take it for its own: the channel may be free before it is heard.
  int only_rank = kNoPeer;
  bool ends_all = false;  // the ranks cannot get into step again after this refusal
};

// The channels that plans get; plans on GPUs have their own.
struct PlanChannels {
  uint32_t first = 0;
  uint32_t count = 0;
};

class NegotiationTable {
 public:
  NegotiationTable(int world_size, PlanChannels plans, PlanChannels gpu_plans = {});

  // The decision, if `rank` was the last one missing for this name.
  std::optional<Decision> Arrive(int rank, Request request, Deadline::Clock::time_point now);

  // The entry that has waited longest beyond its timeout: DEADLINE_EXCEEDED naming the missing
  // ranks. Ok if there is none.
  Status Overdue(Deadline::Clock::time_point now) const;
  // Texts about entries that have waited for `seconds` and were not reported before.
  std::vector<std::string> Stalled(Deadline::Clock::time_point now, double seconds);

  // The requests of each rank in the host's memory that other ranks have not made.
  Undecided UndecidedByRank() const;

  // `rank` does not need the plan any longer; it may ask for it again. The channel that is free now, if the plan had
  // one and no other rank holds it.
  std::optional<uint32_t> Forget(int rank, const std::string& plan);

  // `rank` asks for nothing more until Return: what only it was missing from is decided now.
  std::vector<Decision> Join(int rank);
  void Return();

  // Nothing runs on GPUs: what ranks have agreed on there, have asked for or still ask for is forgotten.
  void CloseGpus();

  size_t waiting() const { return entries_.size(); }

 private:
  struct Entry {
    std::map<int, Request> requests;
    Deadline::Clock::time_point since;
    Deadline::Clock::time_point due = Deadline::Clock::time_point::max();
    double timeout_s = 0.0;  // of the request that is due first
    size_t absent = 0;       // joined ranks that have not asked
    bool reported = false;
  };
  using Key = std::pair<Subject, std::string>;

  // The plan of this name as the ranks have agreed on it.
  struct Agreed {
    Request request;
    uint32_t channel = 0;
    std::set<int> ranks;  // that have asked for it and not forgotten it
  };

  using Rounds = std::deque<Entry>;

  void Add(int rank, Request request, Deadline::Clock::time_point now, Rounds* rounds);
  bool Complete(const Key& key, const Entry& entry) const;
  Decision Decide(const Key& key, const Entry& entry);
  void BeginPlan(const Entry& entry, Decision* decision);
  std::optional<Decision> JoinPlan(int rank, const Request& request);
  std::vector<int> Missing(const Key& key, const Entry& entry) const;
  // The operation in which a rank missing from `entry` has waited longest; empty if none waits in this table.
  std::string Elsewhere(const Entry& entry) const;

  const int world_size_;
  std::map<bool, std::set<uint32_t>> free_channels_;  // by whether they are of plans on GPUs
  std::set<int> joined_;
  bool gpus_closed_ = false;
  std::map<std::string, Agreed> agreed_;
  // A name can be asked for again before all ranks have asked once: one entry a round.
  std::map<Key, Rounds> entries_;
};

// The refusal of an operation in which zeros of the ranks that have joined would make no sense.
Status Unjoinable(const std::string& what, const std::vector<int>& joined);

}  // namespace tfc

#endif  // TFCOLLECTIVE_AGREEMENT_NEGOTIATION_H_
