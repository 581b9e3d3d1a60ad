#include "executor/watch.h"

#include "executor/channels.h"

namespace tfc {
namespace {

// The probe counts on its channel only: the caller has not asked for it.
uint64_t Total(const Progress& progress) {
  uint64_t total = 0;
  for (const auto& [channel, count] : progress) total += channel == kProbeChannel ? 0 : count;
  return total;
}

}  // namespace

Status WatchList::Gone(int rank, const Progress& progress, const std::string& title) const {
  const std::string who = "rank " + std::to_string(rank);
  return Status(Code::kPeerLost,
                who + " left after " + std::to_string(Total(progress)) + " operations, but this rank has come to " +
                    title + " and needs it (" + std::to_string(CompletedOnAll()) + " operations done here). Unless " +
                    who + " has failed (its exit code and output say so), give all ranks the same number of steps " +
                    "(tfcollective.tensorflow.shard), and callbacks that end training the same metrics " +
                    "(MetricAverageCallback)",
                rank);
}

uint64_t WatchList::CompletedOn(uint32_t channel, const Slot& slot) const {
  return slot.completed + (channel == kInlineChannel ? unseen_.load(std::memory_order_acquire) : 0);
}

uint64_t WatchList::CompletedOnAll() const {
  uint64_t completed = unseen_.load(std::memory_order_acquire);
  for (const auto& [channel, slot] : slots_) completed += channel == kProbeChannel ? 0 : slot.completed;
  return completed;
}

Status WatchList::Begin(uint32_t channel, uint64_t sequence, const Operation& operation, bool* view_owed) {
  const MutexLock lock(mutex_);
  for (const auto& [rank, progress] : departed_)
    if (sequence >= CountOf(progress, channel)) return Gone(rank, progress, operation.Title());
  Slot& slot = slots_[channel];
  slot.operation = &operation;
  slot.sequence = sequence;
  slot.since.reset();
  slot.reported = false;
  *view_owed = slot.view_owed == sequence;
  if (*view_owed) slot.view_owed.reset();
  return Status::Ok();
}

void WatchList::End(uint32_t channel, bool completed) {
  const MutexLock lock(mutex_);
  Slot& slot = slots_[channel];
  slot.operation = nullptr;
  if (completed) ++slot.completed;
}

Status WatchList::Depart(int rank, const Progress& progress) {
  const MutexLock lock(mutex_);
  departed_.emplace_back(rank, progress);
  for (const auto& [channel, slot] : slots_)
    if (slot.operation != nullptr && slot.sequence >= CountOf(progress, channel))
      return Gone(rank, progress, slot.operation->Title());
  return Status::Ok();
}

Status WatchList::CheckNoneLeft(const std::string& title) const {
  const MutexLock lock(mutex_);
  if (departed_.empty()) return Status::Ok();
  return Gone(departed_.front().first, departed_.front().second, title);
}

FailureArbiter::View WatchList::View(uint32_t channel, uint64_t sequence) {
  FailureArbiter::View view;
  view.place = {channel, sequence};
  const MutexLock lock(mutex_);
  Slot& slot = slots_[channel];
  if (slot.operation != nullptr && slot.sequence == sequence) {
    view.text = slot.operation->Describe();
    view.signature = slot.operation->Signature();
  } else if (CompletedOn(channel, slot) > sequence) {
    view.text = "has completed it already";
  } else {
    slot.view_owed = sequence;
  }
  return view;
}

Progress WatchList::progress() const {
  const MutexLock lock(mutex_);
  Progress progress;
  for (const auto& [channel, slot] : slots_) progress[channel] = slot.completed;
  const uint64_t unseen = unseen_.load(std::memory_order_acquire);
  if (unseen > 0) progress[kInlineChannel] += unseen;
  return progress;
}

uint64_t WatchList::completed() const {
  const MutexLock lock(mutex_);
  return CompletedOnAll();
}

uint64_t WatchList::active() const {
  const MutexLock lock(mutex_);
  uint64_t active = 0;
  for (const auto& [channel, slot] : slots_) active += slot.operation != nullptr ? 1 : 0;
  return active;
}

std::string WatchList::Oldest() const {
  const MutexLock lock(mutex_);
  const auto begun = [](const Slot& slot) { return slot.since.value_or(Deadline::Clock::time_point::max()); };
  const Slot* oldest = nullptr;
  for (const auto& [channel, slot] : slots_)
    if (slot.operation != nullptr && (oldest == nullptr || begun(slot) < begun(*oldest))) oldest = &slot;
  return oldest == nullptr ? "" : oldest->operation->Title();
}

std::vector<WatchList::Stall> WatchList::Stalled(Deadline::Clock::time_point now, double seconds) {
  std::vector<Stall> stalls;
  if (seconds <= 0) return stalls;
  const MutexLock lock(mutex_);
  for (auto& [channel, slot] : slots_) {
    if (slot.operation == nullptr || slot.reported) continue;
    if (!slot.since) slot.since = now;
    if (now - *slot.since < Deadline::Seconds(seconds)) continue;
    slot.reported = true;
    stalls.push_back({channel, slot.sequence, slot.operation->Title()});
  }
  return stalls;
}

}  // namespace tfc
