#include "executor/joining.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/span.h"

namespace tfc {
ZeroContribution ZeroContributionOf(uint32_t channel, uint64_t sequence, const Operation& operation) {
  ZeroContribution contribution;
  contribution.channel = channel;
  contribution.sequence = sequence;
  contribution.bytes = TotalSize(operation.input);
  contribution.operation.collective = operation.collective;
  contribution.operation.dtype = operation.dtype;
  contribution.operation.op = operation.op;
  contribution.operation.prescale = operation.prescale;
  contribution.operation.postscale = operation.postscale;
  contribution.operation.timeout_s = operation.timeout_s;
  contribution.operation.name = operation.name;
  contribution.operation.shape = operation.shape;
  return contribution;
}

bool TakesZeroContributions(const Operation& operation) {
  return operation.collective == Collective::kAllReduce && (operation.op == Op::kAverage || operation.op == Op::kSum);
}

void JoinedRanks::Add(int rank, const Progress& progress) {
  const MutexLock lock(mutex_);
  joined_[rank] = progress;
  any_.store(true);
}

void JoinedRanks::Clear() {
  const MutexLock lock(mutex_);
  joined_.clear();
  any_.store(false);
}

bool JoinedRanks::Needs(uint32_t channel, uint64_t sequence) const {
  return ContributorsOf(channel, sequence).now < size_;
}

std::vector<int> JoinedRanks::ranks() const {
  const MutexLock lock(mutex_);
  std::vector<int> ranks;
  for (const auto& [rank, progress] : joined_) ranks.push_back(rank);
  return ranks;
}

JoinedRanks::Numbers JoinedRanks::ContributorsOf(uint32_t channel, uint64_t sequence) const {
  const MutexLock lock(mutex_);
  Numbers contributors{size_, size_};
  for (const auto& [rank, progress] : joined_) {
    const uint64_t missed = CountOf(progress, channel);  // the first operation without it
    if (missed <= sequence) --contributors.now;
    if (missed < sequence) --contributors.before;
  }
  return contributors;
}

namespace {

// An announcement costs rank 0 a message to and one from each rank, some microseconds each: most of its time is left.
constexpr std::chrono::microseconds kPauseForEachRank(50);

}  // namespace

bool JoinTracker::Join(int rank, const Progress& progress) {
  unannounced_[rank] = progress;
  unannounced_frontier_.Add(progress);
  announce_ |= frontier_.Add(progress) || MissesWhatWasAskedFor(progress);
  return static_cast<int>(known_.size() + unannounced_.size()) == size_;
}

bool JoinTracker::MissesWhatWasAskedFor(const Progress& progress) const {
  return std::any_of(asked_.begin(), asked_.end(),
                     [&](const auto& asked) { return CountOf(progress, asked.first) < asked.second; });
}

std::optional<JoinTracker::Time> JoinTracker::due() const {
  return announce_ && unacknowledged_ == 0 ? std::optional<Time>(announce_from_) : std::nullopt;
}

Joins JoinTracker::TakeAnnouncement(Time now) {
  if (!due() || now < announce_from_) return {};
  announce_ = false;
  announce_from_ = now + size_ * kPauseForEachRank;
  unacknowledged_ = size_;
  ordered_.clear();
  unannounced_frontier_.Clear();
  for (const auto& [rank, progress] : unannounced_) known_[rank] = progress;
  return std::exchange(unannounced_, {});
}

std::vector<JoinTracker::Order> JoinTracker::Acknowledge() {
  std::vector<Order> orders;
  if (unacknowledged_ > 0) --unacknowledged_;
  if (unacknowledged_ > 0) return orders;
  held_places_.clear();
  for (ZeroContribution& contribution : std::exchange(held_, {})) OrderInto(std::move(contribution), &orders);
  return orders;
}

std::vector<JoinTracker::Order> JoinTracker::Ask(ZeroContribution contribution) {
  announce_ |= unannounced_frontier_.Misses(contribution.channel, contribution.sequence);
  uint64_t& asked = asked_[contribution.channel];
  asked = std::max(asked, contribution.sequence + 1);
  std::vector<Order> orders;
  if (unacknowledged_ > 0) {
    if (held_places_.emplace(contribution.channel, contribution.sequence).second)
      held_.push_back(std::move(contribution));
  } else {
    OrderInto(std::move(contribution), &orders);
  }
  return orders;
}

void JoinTracker::OrderInto(ZeroContribution contribution, std::vector<Order>* orders) {
  uint64_t& ordered = ordered_[contribution.channel];
  if (contribution.sequence < ordered) return;  // another rank has asked already
  ordered = contribution.sequence + 1;
  std::vector<int> ranks;
  for (auto& [rank, next] : known_) {
    if (CountOf(next, contribution.channel) > contribution.sequence) continue;
    next[contribution.channel] = contribution.sequence + 1;
    ranks.push_back(rank);
  }
  if (!ranks.empty()) orders->push_back(Order{std::move(contribution), std::move(ranks)});
}

// Acknowledgements that are still on their way count on.
void JoinTracker::Clear() {
  unannounced_.clear();
  unannounced_frontier_.Clear();
  announce_ = false;
  frontier_.Clear();
  held_.clear();
  held_places_.clear();
  asked_.clear();
  ordered_.clear();
  known_.clear();
}

}  // namespace tfc
