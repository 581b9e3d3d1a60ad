#include "engine/joining.h"

#include <utility>

#include "base/span.h"

namespace tfc {
namespace {

uint64_t CountOf(const Progress& progress, uint32_t channel) {
  const auto found = progress.find(channel);
  return found == progress.end() ? 0 : found->second;
}

}  // namespace

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

JoinedRanks::Contributors JoinedRanks::ContributorsOf(uint32_t channel, uint64_t sequence) const {
  std::lock_guard<std::mutex> lock(mutex_);
  Contributors contributors{size_, size_};
  for (const auto& [rank, progress] : joined_) {
    const uint64_t missed = CountOf(progress, channel);  // the first operation without it
    if (missed <= sequence) --contributors.now;
    if (missed < sequence) --contributors.before;
  }
  return contributors;
}

bool JoinDesk::Join(int rank, const Progress& progress) {
  next_[rank] = progress;
  unacknowledged_ += size_;
  return static_cast<int>(next_.size()) == size_;
}

std::vector<JoinDesk::Order> JoinDesk::Acknowledge() {
  std::vector<Order> orders;
  if (unacknowledged_ > 0) --unacknowledged_;
  if (unacknowledged_ > 0) return orders;
  for (const StandIn& stand_in : held_)
    for (Order& order : OrdersFor(stand_in)) orders.push_back(std::move(order));
  held_.clear();
  return orders;
}

std::vector<JoinDesk::Order> JoinDesk::Ask(StandIn stand_in) {
  if (unacknowledged_ == 0) return OrdersFor(stand_in);
  held_.push_back(std::move(stand_in));
  return {};
}

std::vector<JoinDesk::Order> JoinDesk::OrdersFor(const StandIn& stand_in) {
  std::vector<Order> orders;
  for (auto& [rank, next] : next_) {
    if (CountOf(next, stand_in.channel) > stand_in.sequence) continue;
    next[stand_in.channel] = stand_in.sequence + 1;
    orders.emplace_back(rank, stand_in);
  }
  return orders;
}

void JoinDesk::Clear() {
  next_.clear();
  held_.clear();
}

}  // namespace tfc
