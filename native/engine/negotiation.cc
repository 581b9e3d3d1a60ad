#include "engine/negotiation.h"

#include <algorithm>
#include <utility>

namespace tfc {
namespace {

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

// Long views (a plan of hundreds of tensors) are cut down to the first line in which they differ.
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
    return std::all_of(lines.begin(), lines.end(), [&](const auto& entry) { return entry.second[i] == reference[i]; });
  };
  while (at < shortest && equal_at(at)) ++at;
  std::map<int, std::string> short_views;
  for (const auto& [rank, rank_lines] : lines) {
    const std::string where = rank_lines.size() > 1 || at > 0 ? "line " + std::to_string(at + 1) + ": " : "";
    short_views[rank] = at < rank_lines.size() ? where + rank_lines[at] : "ends after line " + std::to_string(at);
  }
  return short_views;
}

}  // namespace

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
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [rank, view] : OnlyFirstDifference(views)) {
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&v = view](const auto& group) { return group.first == v; });
    if (same == groups.end()) {
      groups.push_back({view, {rank}});
    } else {
      same->second.push_back(rank);
    }
  }
  std::string text;
  for (const auto& [view, ranks] : groups) text += (text.empty() ? "" : "; ") + RankList(ranks) + ": " + view;
  return text;
}

NegotiationTable::NegotiationTable(int world_size, uint32_t first_plan_channel, uint32_t max_plans)
    : world_size_(world_size), first_plan_channel_(first_plan_channel), max_plans_(max_plans) {}

std::optional<Verdict> NegotiationTable::Arrive(int rank, const Request& request, Deadline::Clock::time_point now) {
  const Key key{request.is_plan, request.name};
  auto& rounds = entries_[key];
  auto round =
      std::find_if(rounds.begin(), rounds.end(), [&](const Entry& entry) { return entry.requests.count(rank) == 0; });
  if (round == rounds.end()) {
    rounds.push_back(Entry{{}, now, false});
    round = std::prev(rounds.end());
  }
  round->requests.emplace(rank, request);
  // A rank asks for rounds in order, so only the first round can be complete.
  if (static_cast<int>(rounds.front().requests.size()) < world_size_) return std::nullopt;
  Verdict verdict = Decide(key, rounds.front());
  rounds.pop_front();
  if (rounds.empty()) entries_.erase(key);
  return verdict;
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
  if (!verdict.is_plan) return verdict;
  if (plans_ >= max_plans_) {
    verdict.refusal =
        Status(Code::kResourceExhausted,
               "more than " + std::to_string(max_plans_) +
                   " bucket plans in one communicator; keep the traced functions, do not trace new ones each step");
    return verdict;
  }
  verdict.channel = first_plan_channel_ + plans_++;
  return verdict;
}

std::string NegotiationTable::MissingRanks(const Entry& entry) const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank)
    if (entry.requests.count(rank) == 0) missing.push_back(rank);
  return RankList(missing);
}

int NegotiationTable::FirstMissing(const Entry& entry) const {
  for (int rank = 0; rank < world_size_; ++rank)
    if (entry.requests.count(rank) == 0) return rank;
  return kNoPeer;
}

Status NegotiationTable::Overdue(Deadline::Clock::time_point now) const {
  for (const auto& [key, rounds] : entries_) {
    const Entry& entry = rounds.front();
    const Request& first = entry.requests.begin()->second;
    if (now - entry.since < Deadline::Seconds(first.timeout_s)) continue;
    return Status(Code::kDeadlineExceeded,
                  first.view.substr(0, first.view.find('\n')) + " timed out after " +
                      std::to_string(static_cast<int>(first.timeout_s)) + " s: " + MissingRanks(entry) +
                      " did not call it",
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
    const std::string& view = entry.requests.begin()->second.view;
    texts.push_back(view.substr(0, view.find('\n')) + " has waited " + std::to_string(static_cast<int>(seconds)) +
                    " s for " + MissingRanks(entry));
  }
  return texts;
}

}  // namespace tfc
