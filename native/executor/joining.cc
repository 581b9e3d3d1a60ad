#include "executor/joining.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/span.h"

namespace tfc {
StandIn StandInOf(uint32_t channel, uint64_t sequence, const Operation& operation) {
  StandIn stand_in;
  stand_in.channel = channel;
  stand_in.sequence = sequence;
  stand_in.bytes = TotalSize(operation.input);
  stand_in.operation.collective = operation.collective;
  stand_in.operation.dtype = operation.dtype;
  stand_in.operation.op = operation.op;
  stand_in.operation.prescale = operation.prescale;
  stand_in.operation.postscale = operation.postscale;
  stand_in.operation.timeout_s = operation.timeout_s;
  stand_in.operation.name = operation.name;
  stand_in.operation.shape = operation.shape;
  return stand_in;
}

bool TakesStandIns(const Operation& operation) {
  return operation.collective == Collective::kAllReduce && (operation.op == Op::kAverage || operation.op == Op::kSum);
}

void JoinedRanks::Add(int rank, const Progress& progress) {
  std::lock_guard<std::mutex> lock(mutex_);
  joined_[rank] = progress;
  any_.store(true);
}

void JoinedRanks::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  joined_.clear();
  any_.store(false);
}

bool JoinedRanks::Needs(uint32_t channel, uint64_t sequence) const {
  return ContributorsOf(channel, sequence).now < size_;
}

std::vector<int> JoinedRanks::ranks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int> ranks;
  for (const auto& [rank, progress] : joined_) ranks.push_back(rank);
  return ranks;
}

JoinedRanks::Numbers JoinedRanks::ContributorsOf(uint32_t channel, uint64_t sequence) const {
  std::lock_guard<std::mutex> lock(mutex_);
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

bool JoinDesk::Join(int rank, const Progress& progress) {
  unannounced_[rank] = progress;
  unannounced_frontier_.Add(progress);
  announce_ |= frontier_.Add(progress) || MissesWhatWasAskedFor(progress);
  return static_cast<int>(known_.size() + unannounced_.size()) == size_;
}

bool JoinDesk::MissesWhatWasAskedFor(const Progress& progress) const {
  return std::any_of(asked_.begin(), asked_.end(),
                     [&](const auto& asked) { return CountOf(progress, asked.first) < asked.second; });
}

std::optional<JoinDesk::Time> JoinDesk::due() const {
  return announce_ && unacknowledged_ == 0 ? std::optional<Time>(announce_from_) : std::nullopt;
}

Joins JoinDesk::TakeAnnouncement(Time now) {
  if (!due() || now < announce_from_) return {};
  announce_ = false;
  announce_from_ = now + size_ * kPauseForEachRank;
  unacknowledged_ = size_;
  ordered_.clear();
  unannounced_frontier_.Clear();
  for (const auto& [rank, progress] : unannounced_) known_[rank] = progress;
  return std::exchange(unannounced_, {});
}

std::vector<JoinDesk::Order> JoinDesk::Acknowledge() {
  std::vector<Order> orders;
  if (unacknowledged_ > 0) --unacknowledged_;
  if (unacknowledged_ > 0) return orders;
  held_places_.clear();
  for (StandIn& stand_in : std::exchange(held_, {})) OrderInto(std::move(stand_in), &orders);
  return orders;
}

std::vector<JoinDesk::Order> JoinDesk::Ask(StandIn stand_in) {
  announce_ |= unannounced_frontier_.Misses(stand_in.channel, stand_in.sequence);
  uint64_t& asked = asked_[stand_in.channel];
  asked = std::max(asked, stand_in.sequence + 1);
  std::vector<Order> orders;
  if (unacknowledged_ > 0) {
    if (held_places_.emplace(stand_in.channel, stand_in.sequence).second) held_.push_back(std::move(stand_in));
  } else {
    OrderInto(std::move(stand_in), &orders);
  }
  return orders;
}

void JoinDesk::OrderInto(StandIn stand_in, std::vector<Order>* orders) {
  uint64_t& ordered = ordered_[stand_in.channel];
  if (stand_in.sequence < ordered) return;  // another rank has asked already
  ordered = stand_in.sequence + 1;
  std::vector<int> ranks;
  for (auto& [rank, next] : known_) {
    if (CountOf(next, stand_in.channel) > stand_in.sequence) continue;
    next[stand_in.channel] = stand_in.sequence + 1;
    ranks.push_back(rank);
  }
  if (!ranks.empty()) orders->push_back(Order{std::move(stand_in), std::move(ranks)});
}

// Acknowledgements that are still on their way count on.
void JoinDesk::Clear() {
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
