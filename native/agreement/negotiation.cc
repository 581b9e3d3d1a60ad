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

NegotiationTable::NegotiationTable(int world_size, uint32_t first_plan_channel, uint32_t max_plans)
    : world_size_(world_size) {
  for (uint32_t plan = 0; plan < max_plans; ++plan) free_channels_.insert(first_plan_channel + plan);
}

std::optional<Verdict> NegotiationTable::Arrive(int rank, Request request, Deadline::Clock::time_point now) {
  if (request.is_plan) {
    if (auto verdict = JoinPlan(rank, request)) return verdict;
  }
  const Key key{request.is_plan, request.name};
  auto& rounds = entries_[key];
  auto round =
      std::find_if(rounds.begin(), rounds.end(), [&](const Entry& entry) { return entry.requests.count(rank) == 0; });
  if (round == rounds.end()) {
    rounds.push_back(Entry{{}, now, joined_.size(), false});
    round = std::prev(rounds.end());
  }
  round->absent -= joined_.count(rank);
  round->requests.emplace(rank, std::move(request));
  // A rank asks for rounds in order, so only the first round can be complete.
  if (!Complete(rounds.front())) return std::nullopt;
  Verdict verdict = Decide(key, rounds.front());
  rounds.pop_front();
  if (rounds.empty()) entries_.erase(key);
  return verdict;
}

bool NegotiationTable::Waits(const std::string& name, int rank) const {
  const auto found = entries_.find(Key{false, name});
  return found != entries_.end() && found->second.front().requests.count(rank) != 0;
}

std::map<int, std::string> NegotiationTable::Views(const std::string& name) const {
  std::map<int, std::string> views;
  const auto found = entries_.find(Key{false, name});
  if (found == entries_.end()) return views;
  for (const auto& [rank, request] : found->second.front().requests) views[rank] = request.view;
  return views;
}

bool NegotiationTable::Complete(const Entry& entry) const {
  return entry.requests.size() + entry.absent == static_cast<size_t>(world_size_);
}

std::vector<Verdict> NegotiationTable::Join(int rank) {
  std::vector<Verdict> verdicts;
  if (!joined_.insert(rank).second) return verdicts;
  for (auto found = entries_.begin(); found != entries_.end();) {
    auto& rounds = found->second;
    for (Entry& entry : rounds) entry.absent += 1 - entry.requests.count(rank);
    while (!rounds.empty() && Complete(rounds.front())) {
      verdicts.push_back(Decide(found->first, rounds.front()));
      rounds.pop_front();
    }
    found = rounds.empty() ? entries_.erase(found) : std::next(found);
  }
  return verdicts;
}

void NegotiationTable::Return() {
  joined_.clear();
  for (auto& [key, rounds] : entries_)
    for (Entry& entry : rounds) entry.absent = 0;
}

// A rank that had joined while the others agreed on a plan agrees later, alone.
std::optional<Verdict> NegotiationTable::JoinPlan(int rank, const Request& request) {
  const auto found = agreed_.find(request.name);
  if (found == agreed_.end()) return std::nullopt;
  Agreed& agreed = found->second;
  const int other = *agreed.ranks.begin();
  if (!agreed.ranks.insert(rank).second) return std::nullopt;
  Verdict verdict;
  verdict.is_plan = true;
  verdict.name = request.name;
  verdict.channel = agreed.channel;
  if (agreed.request.signature == request.signature) {
    verdict.only_rank = rank;
  } else {
    verdict.refusal = Status(Code::kMismatch, "the ranks disagree on the bucket plan '" + request.name + "': " +
                                                  CompareViews({{other, agreed.request.view}, {rank, request.view}}));
  }
  return verdict;
}

std::optional<uint32_t> NegotiationTable::Forget(int rank, const std::string& plan) {
  const auto found = agreed_.find(plan);
  if (found == agreed_.end()) return std::nullopt;
  found->second.ranks.erase(rank);
  if (!found->second.ranks.empty()) return std::nullopt;
  const uint32_t channel = found->second.channel;
  agreed_.erase(found);
  if (channel == kNoPlanChannel) return std::nullopt;
  free_channels_.insert(channel);
  return channel;
}

Verdict NegotiationTable::Decide(const Key& key, const Entry& entry) {
  Verdict verdict;
  verdict.is_plan = key.first;
  verdict.name = key.second;
  const uint64_t signature = entry.requests.begin()->second.signature;
  const bool agree = std::all_of(entry.requests.begin(), entry.requests.end(),
                                 [&](const auto& request) { return request.second.signature == signature; });
  if (!agree) {
    std::map<int, std::string> views;
    for (const auto& [rank, request] : entry.requests) views[rank] = request.view;
    verdict.refusal =
        Status(Code::kMismatch, std::string("the ranks disagree on ") + (key.first ? "the bucket plan '" : "'") +
                                    key.second + "': " + CompareViews(views));
    return verdict;
  }
  const Request& first = entry.requests.begin()->second;
  if (static_cast<int>(entry.requests.size()) < world_size_ && !first.takes_zero_contributions) {
    verdict.refusal = Unjoinable(first.view, std::vector<int>(joined_.begin(), joined_.end()));
    return verdict;
  }
  if (!verdict.is_plan) return verdict;
  verdict.channel = free_channels_.empty() ? kNoPlanChannel : *free_channels_.begin();
  free_channels_.erase(verdict.channel);
  Agreed& agreed = agreed_[key.second];
  agreed.request = first;
  agreed.channel = verdict.channel;
  for (const auto& request : entry.requests) agreed.ranks.insert(request.first);
  return verdict;
}

std::string NegotiationTable::MissingRanks(const Entry& entry) const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank)
    if (entry.requests.count(rank) == 0 && joined_.count(rank) == 0) missing.push_back(rank);
  return RankList(missing);
}

int NegotiationTable::FirstMissing(const Entry& entry) const {
  for (int rank = 0; rank < world_size_; ++rank)
    if (entry.requests.count(rank) == 0 && joined_.count(rank) == 0) return rank;
  return kNoPeer;
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
  return "; rank " + std::to_string(late) + " waits in " + FirstLine(instead->requests.at(late).view) +
         ": do all ranks call the same operations? Those of one tf.function run in the order in which it calls them";
}

Status NegotiationTable::Overdue(Deadline::Clock::time_point now) const {
  for (const auto& [key, rounds] : entries_) {
    const Entry& entry = rounds.front();
    const Request& first = entry.requests.begin()->second;
    if (now - entry.since < Deadline::Seconds(first.timeout_s)) continue;
    return Status(Code::kDeadlineExceeded,
                  FirstLine(first.view) + " timed out after " + std::to_string(static_cast<int>(first.timeout_s)) +
                      " s: " + MissingRanks(entry) + " did not call it" + Elsewhere(entry),
                  FirstMissing(entry));
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
    texts.push_back(FirstLine(entry.requests.begin()->second.view) + " has waited " +
                    std::to_string(static_cast<int>(seconds)) + " s for " + MissingRanks(entry));
  }
  return texts;
}

}  // namespace tfc
