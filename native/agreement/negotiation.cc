#include "agreement/negotiation.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace tfc {
namespace {

constexpr size_t kMostViews = 16;  // in a message, which goes to every rank

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// What the ranks must agree on of a line.
std::string Agreed(const std::string& line) { return line.substr(0, line.find('\t')); }

std::string Readable(std::string line) {
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

std::string FirstLine(const std::string& view) { return Readable(view.substr(0, view.find('\n'))); }

// Long views (a plan of hundreds of tensors) are cut down to the first line in which the ranks do not agree.
std::map<int, std::string> OnlyFirstDifference(const std::map<int, std::string>& views) {
  std::map<int, std::vector<std::string>> lines;
  size_t shortest = SIZE_MAX;
  for (const auto& [rank, view] : views) {
    lines[rank] = Lines(view);
    shortest = std::min(shortest, lines[rank].size());
  }
  const auto& reference = lines.begin()->second;
  size_t at = 0;
  const auto equal_at = [&](size_t i) {
    return std::all_of(lines.begin(), lines.end(),
                       [&](const auto& entry) { return Agreed(entry.second[i]) == Agreed(reference[i]); });
  };
  while (at < shortest && equal_at(at)) ++at;
  std::map<int, std::string> short_views;
  for (const auto& [rank, rank_lines] : lines) {
    const std::string where = rank_lines.size() > 1 || at > 0 ? "line " + std::to_string(at + 1) + ": " : "";
    short_views[rank] =
        at < rank_lines.size() ? where + Readable(rank_lines[at]) : "ends after line " + std::to_string(at);
  }
  return short_views;
}

}  // namespace

std::string WithoutLabels(const std::string& text) {
  std::string agreed;
  for (const std::string& line : Lines(text)) agreed += Agreed(line) + '\n';
  return agreed;
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string CompareViews(const std::map<int, std::string>& views) {
  if (views.empty()) return "";
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // by their first rank
  std::unordered_map<std::string, size_t> group_of;
  for (auto& [rank, view] : OnlyFirstDifference(views)) {
    const auto [group, is_new] = group_of.emplace(view, groups.size());
    if (is_new) groups.emplace_back(view, std::vector<int>());
    groups[group->second].second.push_back(rank);
  }
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kMostViews; ++i)
    text += (text.empty() ? "" : "; ") + RankList(groups[i].second) + ": " + groups[i].first;
  if (groups.size() > kMostViews) text += "; and " + std::to_string(groups.size() - kMostViews) + " other views";
  return text;
}

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
  if (static_cast<int>(entry.requests.size()) < world_size_ && !first.takes_stand_ins) {
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
