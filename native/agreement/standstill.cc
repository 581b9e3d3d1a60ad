#include "agreement/standstill.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/rank_texts.h"

namespace tfc {
namespace {

// That `other` is in this operation, or has done it.
bool HasCome(const Standstill& other, const Running& running) {
  const auto completed = other.completed.find(running.channel);
  if (completed != other.completed.end() && completed->second > running.sequence) return true;
  return std::any_of(other.running.begin(), other.running.end(), [&running](const Running& one) {
    return one.channel == running.channel && one.sequence == running.sequence && one.signature == running.signature;
  });
}

bool AllHaveCome(const std::map<int, Standstill>& said, const Running& running) {
  return std::all_of(said.begin(), said.end(), [&](const auto& entry) { return HasCome(entry.second, running); });
}

}  // namespace

bool operator==(const Running& a, const Running& b) {
  return std::tie(a.channel, a.sequence, a.signature) == std::tie(b.channel, b.sequence, b.signature);
}

bool operator==(const Standstill& a, const Standstill& b) {
  return std::tie(a.holds, a.begun, a.completed, a.running) == std::tie(b.holds, b.begun, b.completed, b.running);
}

Status Deadlock(int world_size, const std::map<int, Standstill>& said, const Undecided& undecided) {
  if (static_cast<int>(said.size()) != world_size) return Status::Ok();
  std::map<int, std::string> waits;
  for (const auto& [rank, standstill] : said) {
    for (const Running& running : standstill.running) {
      if (AllHaveCome(said, running)) return Status::Ok();
      waits.emplace(rank, running.title);
    }
    const auto asked = undecided.find(rank);
    if (asked != undecided.end()) waits.emplace(rank, asked->second);
    if (waits.count(rank) == 0) return Status::Ok();
  }
  return Status(Code::kMismatch,
                "the ranks wait for each other, and none can go on: each is in an operation that another has not "
                "called: " +
                    CompareViews(waits) +
                    ". Do all ranks make the same steps, and as many of them, with the same operations in the same "
                    "order?");
}

StandstillRecord::Next StandstillRecord::Take(int rank, Standstill standstill, const Undecided& undecided) {
  const auto known = said_.find(rank);
  const bool again = known != said_.end() && known->second == standstill;
  if (!again) confirmed_.reset();
  if (!standstill.holds) {
    said_.erase(rank);
    return Next::kNothing;
  }
  said_[rank] = std::move(standstill);
  if (confirmed_) {
    confirmed_->insert(rank);
    if (static_cast<int>(confirmed_->size()) < world_size_) return Next::kNothing;
  }
  Status deadlock = Deadlock(world_size_, said_, undecided);
  if (deadlock.ok()) {
    confirmed_.reset();
    return Next::kNothing;
  }
  if (!confirmed_) {
    confirmed_.emplace();
    return Next::kAskAll;
  }
  failure_ = std::move(deadlock);
  return Next::kFail;
}

}  // namespace tfc
