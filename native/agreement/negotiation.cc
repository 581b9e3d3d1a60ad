#include "agreement/negotiation.h"

#include <algorithm>
#include <utility>

namespace tfc {
Status Unjoinable(const std::string& what, const std::vector<int>& joined) {
  return Status(Code::kMismatch,
                FirstLine(what) + " cannot run: " + RankList(joined) + (joined.size() == 1 ? " has" : " have") +
                    " joined, and until all ranks have joined only all-reduce with Average or Sum "
                    "works",
                joined.front());
}

namespace {

constexpr size_t kMostGradients = 8;  // in a message

// How an operation that waits is called in messages.
std::string Title(const Request& request) { return FirstLine(request.view) + (request.on_gpus ? " on a GPU" : ""); }

std::string NameOf(const Request& request) {
  if (request.subject == Subject::kPlan) return "the bucket plan '" + request.name + "'";
  if (request.subject == Subject::kDirectCall) return "direct call " + request.name + " on GPUs";
  return "'" + request.name + "'";
}

// Of a plan, the variables whose gradients it reduces: ranks that have gradients of others make other plans.
std::string WaitedFor(const Request& request) {
  if (request.subject != Subject::kPlan) return Title(request);
  const std::vector<std::string> labels = LabelsOf(request.view);
  std::string text = "the first step of " + NameOf(request) + " with " + std::to_string(labels.size()) + " gradients";
  for (size_t i = 0; i < std::min(labels.size(), kMostGradients); ++i) text += (i == 0 ? ": " : ", ") + labels[i];
  return labels.size() > kMostGradients ? text + " ..." : text;
}

Decision DecisionOn(const Request& request) {
  Decision decision;
  decision.subject = request.subject;
  decision.name = request.name;
  decision.on_gpus = request.on_gpus;
  return decision;
}

bool AnyBlob(const std::map<int, Request>& requests) {
  return std::any_of(requests.begin(), requests.end(), [](const auto& one) { return !one.second.blob.empty(); });
}

// Where the ranks ask for different things. Only a call by name can be refused alone: of plans the replicas would be
// apart for good, direct calls would be out of step, and of two places each rank looks at its own only.
void Refuse(const std::map<int, Request>& requests, Decision* decision) {
  const Request& first = requests.begin()->second;
  bool same_place = true, same = true;
  for (const auto& [rank, request] : requests) {
    same_place = same_place && request.on_gpus == first.on_gpus;
    same = same && request.signature == first.signature;
  }
  if (same_place && same) return;
  std::map<int, std::string> views;
  for (const auto& [rank, request] : requests)
    views[rank] = same_place ? request.view : Title(request) + (request.on_gpus ? "" : " in the host's memory");
  const std::string what = same_place ? NameOf(first) : "where " + NameOf(first) + " lies";
  decision->refusal = Status(Code::kMismatch, "the ranks disagree on " + what + ": " + CompareViews(views));
  decision->ends_all = !same_place || first.subject != Subject::kOperation;
}

}  // namespace

NegotiationTable::NegotiationTable(int world_size, PlanChannels plans, PlanChannels gpu_plans)
    : world_size_(world_size) {
  for (const bool on_gpus : {false, true}) {
    const PlanChannels& channels = on_gpus ? gpu_plans : plans;
    for (uint32_t plan = 0; plan < channels.count; ++plan) free_channels_[on_gpus].insert(channels.first + plan);
  }
}

std::optional<Decision> NegotiationTable::Arrive(int rank, Request request, Deadline::Clock::time_point now) {
  if (request.on_gpus && gpus_closed_) return std::nullopt;
  if (!request.objection.ok()) {
    CloseGpus();
    Decision decision = DecisionOn(request);
    decision.refusal = std::move(request.objection);
    return decision;
  }
  if (request.subject == Subject::kPlan) {
    if (auto decision = JoinPlan(rank, request)) return decision;
  }
  const Key key{request.subject, request.name};
  Rounds& rounds = entries_[key];
  Add(rank, std::move(request), now, &rounds);
  // A rank asks for rounds in order, so only the first round can be complete.
  if (!Complete(key, rounds.front())) return std::nullopt;
  Decision decision = Decide(key, rounds.front());
  rounds.pop_front();
  if (rounds.empty()) entries_.erase(key);
  return decision;
}

void NegotiationTable::Add(int rank, Request request, Deadline::Clock::time_point now, Rounds* rounds) {
  auto round =
      std::find_if(rounds->begin(), rounds->end(), [&](const Entry& entry) { return entry.requests.count(rank) == 0; });
  if (round == rounds->end()) {
    round = rounds->insert(round, Entry());
    round->since = now;
    round->absent = joined_.size();
  }
  round->absent -= joined_.count(rank);
  const auto due = now + Deadline::Seconds(request.timeout_s);
  if (due < round->due) {
    round->due = due;
    round->timeout_s = request.timeout_s;
  }
  round->requests.emplace(rank, std::move(request));
}

// A set-up serves the time after the joined ranks have come back, too: it waits for them.
bool NegotiationTable::Complete(const Key& key, const Entry& entry) const {
  const size_t absent = key.first == Subject::kSetup ? 0 : entry.absent;
  return entry.requests.size() + absent == static_cast<size_t>(world_size_);
}

std::vector<Decision> NegotiationTable::Join(int rank) {
  std::vector<Decision> decisions;
  if (!joined_.insert(rank).second) return decisions;
  for (auto found = entries_.begin(); found != entries_.end();) {
    Rounds& rounds = found->second;
    for (Entry& entry : rounds) entry.absent += 1 - entry.requests.count(rank);
    while (!rounds.empty() && Complete(found->first, rounds.front())) {
      decisions.push_back(Decide(found->first, rounds.front()));
      rounds.pop_front();
    }
    found = rounds.empty() ? entries_.erase(found) : std::next(found);
  }
  return decisions;
}

void NegotiationTable::Return() {
  joined_.clear();
  for (auto& [key, rounds] : entries_)
    for (Entry& entry : rounds) entry.absent = 0;
}

// What a rank has asked for in the host's memory moves up to the rounds that its requests on GPUs leave. No round
// becomes complete by that: the first one had a request of each of these ranks.
void NegotiationTable::CloseGpus() {
  gpus_closed_ = true;
  for (auto plan = agreed_.begin(); plan != agreed_.end();)
    plan = plan->second.request.on_gpus ? agreed_.erase(plan) : std::next(plan);
  for (auto found = entries_.begin(); found != entries_.end();) {
    Rounds kept;
    for (Entry& entry : found->second)
      for (auto& [rank, request] : entry.requests)
        if (!request.on_gpus) Add(rank, std::move(request), entry.since, &kept);
    found->second.swap(kept);
    found = found->second.empty() ? entries_.erase(found) : std::next(found);
  }
}

// A rank that had joined while the others agreed on a plan agrees later, alone.
std::optional<Decision> NegotiationTable::JoinPlan(int rank, const Request& request) {
  const auto found = agreed_.find(request.name);
  if (found == agreed_.end()) return std::nullopt;
  Agreed& agreed = found->second;
  const int other = *agreed.ranks.begin();
  if (!agreed.ranks.insert(rank).second) return std::nullopt;
  Decision decision = DecisionOn(request);
  decision.channel = agreed.channel;
  Refuse({{other, agreed.request}, {rank, request}}, &decision);
  if (decision.refusal.ok()) decision.only_rank = rank;
  return decision;
}

std::optional<uint32_t> NegotiationTable::Forget(int rank, const std::string& plan) {
  const auto found = agreed_.find(plan);
  if (found == agreed_.end()) return std::nullopt;
  found->second.ranks.erase(rank);
  if (!found->second.ranks.empty()) return std::nullopt;
  const uint32_t channel = found->second.channel;
  const bool on_gpus = found->second.request.on_gpus;
  agreed_.erase(found);
  if (channel == kNoPlanChannel) return std::nullopt;
  free_channels_[on_gpus].insert(channel);
  return channel;
}

Decision NegotiationTable::Decide(const Key& key, const Entry& entry) {
  const Request& first = entry.requests.begin()->second;
  Decision decision = DecisionOn(first);
  Refuse(entry.requests, &decision);
  if (!decision.refusal.ok()) return decision;
  if (entry.requests.size() < static_cast<size_t>(world_size_) && !first.takes_zeros) {
    decision.refusal = Unjoinable(first.view, std::vector<int>(joined_.begin(), joined_.end()));
    decision.ends_all = key.first != Subject::kOperation;
    return decision;
  }
  if (key.first == Subject::kPlan) BeginPlan(entry, &decision);
  if (AnyBlob(entry.requests))
    for (const auto& [rank, request] : entry.requests) decision.blobs.push_back(request.blob);
  return decision;
}

void NegotiationTable::BeginPlan(const Entry& entry, Decision* decision) {
  std::set<uint32_t>& free = free_channels_[decision->on_gpus];
  decision->channel = free.empty() ? kNoPlanChannel : *free.begin();
  free.erase(decision->channel);
  Agreed& agreed = agreed_[decision->name];
  agreed.request = entry.requests.begin()->second;
  agreed.channel = decision->channel;
  for (const auto& request : entry.requests) agreed.ranks.insert(request.first);
}

std::vector<int> NegotiationTable::Missing(const Key& key, const Entry& entry) const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank)
    if (entry.requests.count(rank) == 0 && (joined_.count(rank) == 0 || key.first == Subject::kSetup))
      missing.push_back(rank);
  return missing;
}

std::string NegotiationTable::Elsewhere(const Entry& entry) const {
  int late = kNoPeer;
  const Entry* instead = nullptr;
  for (const auto& [key, rounds] : entries_) {
    for (const auto& [rank, request] : rounds.front().requests) {
      if (entry.requests.count(rank) != 0) continue;
      if (instead != nullptr && instead->since <= rounds.front().since) continue;
      late = rank;
      instead = &rounds.front();
    }
  }
  if (instead == nullptr) return "";
  return "; rank " + std::to_string(late) + " waits in " + Title(instead->requests.at(late)) +
         ": do all ranks call the same operations? Those of one tf.function run in the order in which it calls them";
}

Undecided NegotiationTable::UndecidedByRank() const {
  Undecided undecided;
  for (const auto& [key, rounds] : entries_)
    for (const auto& [rank, request] : rounds.front().requests)
      if (!request.on_gpus) undecided.emplace(rank, WaitedFor(request));
  return undecided;
}

Status NegotiationTable::Overdue(Deadline::Clock::time_point now) const {
  for (const auto& [key, rounds] : entries_) {
    const Entry& entry = rounds.front();
    if (now < entry.due) continue;
    const std::vector<int> missing = Missing(key, entry);
    return Status(Code::kDeadlineExceeded,
                  WaitedFor(entry.requests.begin()->second) + " timed out after " +
                      std::to_string(static_cast<int>(entry.timeout_s)) + " s: " + RankList(missing) +
                      " did not call it" + Elsewhere(entry),
                  missing.front());
  }
  return Status::Ok();
}

std::vector<std::string> NegotiationTable::Stalled(Deadline::Clock::time_point now, double seconds) {
  std::vector<std::string> texts;
  if (seconds <= 0) return texts;
  for (auto& [key, rounds] : entries_) {
    Entry& entry = rounds.front();
    if (entry.reported || now - entry.since < Deadline::Seconds(seconds)) continue;
    entry.reported = true;
    texts.push_back(WaitedFor(entry.requests.begin()->second) + " has waited " +
                    std::to_string(static_cast<int>(seconds)) + " s for " + RankList(Missing(key, entry)));
  }
  return texts;
}

}  // namespace tfc
