#include "base/rank_texts.h"

#include <algorithm>
#include <cstdint>
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

std::string FirstLine(const std::string& view) { return Readable(view.substr(0, view.find('\n'))); }

std::vector<std::string> LabelsOf(const std::string& text) {
  std::vector<std::string> labels;
  for (const std::string& line : Lines(text)) {
    std::string label = line.substr(line.find('\t') + 1);  // npos + 1 is 0
    if (label.size() > 2 && label.front() == '(' && label.back() == ')') label = label.substr(1, label.size() - 2);
    labels.push_back(std::move(label));
  }
  return labels;
}

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

}  // namespace tfc
