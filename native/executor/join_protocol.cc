#include "executor/join_protocol.h"

#include <utility>
#include <vector>

#include "agreement/negotiation.h"
#include "base/rank_texts.h"
#include "collectives/algorithms/pieces.h"
#include "control/timing.h"
#include "executor/channels.h"

namespace tfc {
namespace {

// Averages of integers are divided by the right number to begin with.
bool NeedsCorrection(const Operation& operation) {
  return operation.collective == Collective::kAllReduce && operation.op == Op::kAverage &&
         !operation.AveragesIntegers();
}

// On GPUs nothing stands for a joined rank.
bool TakesZerosOn(uint32_t channel, const Operation& operation) {
  return !IsGpuPlanChannel(channel) && TakesZeroContributions(operation);
}

ConstSpans Readable(const MutableSpans& spans) {
  ConstSpans readable;
  for (const MutableSpan& span : spans) readable.push_back({span.data, span.size});
  return readable;
}

}  // namespace

// ---- operations that joined ranks may be missing from -------------------------------------------

Status JoinProtocol::Call(const Operation& operation, uint32_t channel, uint64_t sequence) {
  if (!joined_.Needs(channel, sequence)) return Status::Ok();
  if (!TakesZerosOn(channel, operation)) {
    host_->FailEverywhere(Unjoinable(operation.Describe(), joined_.ranks()));
    return failure_->Get();
  }
  Send(control_, 0, Message::kMissing, ZeroContributionOf(channel, sequence, operation));
  return Status::Ok();
}

void JoinProtocol::Correct(const Operation& operation, uint32_t channel, uint64_t sequence) const {
  if (!NeedsCorrection(operation)) return;
  const auto contributors = joined_.ContributorsOf(channel, sequence);
  if (contributors.now == 0 || contributors.now == contributors.before) return;  // of none: nothing reads it
  Reduction correction;
  correction.dtype = operation.dtype;
  correction.postscale = contributors.before;
  correction.divisor = contributors.now;
  ScaleSpans(correction, Readable(operation.output), operation.output);
}

// ---- the rank that joins ------------------------------------------------------------------------

Result<int> JoinProtocol::Join(double timeout_s) {
  {
    const MutexLock lock(mutex_);
    joining_ = true;
  }
  const Status left = LeftWithoutJoining();
  if (!left.ok()) host_->Fail(left);
  const Status begun = host_->WaitUntilNothingRuns();
  if (begun.ok()) Send(control_, 0, Message::kJoin, watch_->progress());
  Result<int> last = begun.ok() ? ContributeUntilAllJoin(timeout_s) : begun;
  const MutexLock lock(mutex_);
  joining_ = false;
  all_joined_.reset();
  contributions_.clear();
  return last;
}

Result<int> JoinProtocol::ContributeUntilAllJoin(double timeout_s) {
  Deadline deadline = Deadline::After(timeout_s);
  bool asked = false;  // rank 0, which alone knows of all joins
  while (true) {
    const bool woken = failure_->events().WaitUntil(deadline, [this] { return failure_->failed() || HasWork(); });
    if (failure_->failed()) return failure_->Get();
    if (!woken && asked) {
      host_->FailEverywhere(Status(Code::kDeadlineExceeded, "join timed out: rank 0 does not answer", 0));
      return failure_->Get();
    }
    if (!woken) {
      Send(control_, 0, Message::kJoinTimeout, timeout_s);
      deadline = Deadline::After(timing::kRootAnswer);
      asked = true;
      continue;
    }
    const auto contribution = NextContribution();
    if (!contribution) break;
    host_->RunInTurn(contribution->channel, [this, contribution](const Resources& resources, Channel* channel) {
      Run(*contribution, resources, channel);
    });
    deadline = Deadline::After(timeout_s);
    asked = false;
  }
  const int last = last_joined();
  // Our part in the last operations may still be under way, though the others have ended them.
  TFC_RETURN_IF_ERROR(host_->WaitUntilNothingRuns());
  return last;
}

bool JoinProtocol::HasWork() const {
  const MutexLock lock(mutex_);
  return all_joined_ || !contributions_.empty();
}

std::optional<ZeroContribution> JoinProtocol::NextContribution() {
  const MutexLock lock(mutex_);
  if (contributions_.empty()) return std::nullopt;
  std::optional<ZeroContribution> next = std::move(contributions_.front());
  contributions_.pop_front();
  return next;
}

int JoinProtocol::last_joined() const {
  const MutexLock lock(mutex_);
  return all_joined_.value_or(kNoPeer);
}

void JoinProtocol::Run(const ZeroContribution& contribution, const Resources& resources, Channel* channel) {
  if (contribution.sequence != channel->sequence)
    return host_->FailEverywhere(
        Status(Code::kInternal, contribution.operation.Title() + ": a joined rank is at operation " +
                                    std::to_string(channel->sequence) + " of a channel, not at " +
                                    std::to_string(contribution.sequence)));
  std::vector<std::byte> zeros;
  try {
    zeros.resize(contribution.bytes);
  } catch (const std::exception&) {
    return host_->FailEverywhere(Status(
        Code::kResourceExhausted,
        contribution.operation.Title() + ": no memory for " + std::to_string(contribution.bytes) + " bytes of zeros"));
  }
  Operation operation = contribution.operation;
  operation.input = {{zeros.data(), zeros.size()}};
  operation.output = {{zeros.data(), zeros.size()}};
  host_->RunHere(&operation, resources, channel);
}

Status JoinProtocol::LeftWithoutJoining() const {
  {
    const MutexLock lock(mutex_);
    if (!joining_ || all_joined_) return Status::Ok();
  }
  const Status left = watch_->CheckNoneLeft("join");
  if (left.ok()) return left;
  return Status(
      Code::kPeerLost,
      "rank " + std::to_string(left.peer()) + " has left without joining: every rank calls join at the end of its data",
      left.peer());
}

// ---- messages -----------------------------------------------------------------------------------

Status JoinProtocol::OnMessage(int from, Message type, const std::string& payload) {
  monitor_.AssertHeld();
  if (type == Message::kJoined) return OnJoined(payload);
  if (type == Message::kNoted) {
    Order(tracker_.Acknowledge());
    Announce();
  } else if (type == Message::kMissing) {
    ZeroContribution contribution;
    TFC_RETURN_IF_ERROR(DecodeAndCheck(payload, size_, &contribution));
    Order(tracker_.Ask(std::move(contribution)));
    Announce();
  } else if (type == Message::kZeroContribution) {
    ZeroContribution contribution;
    TFC_RETURN_IF_ERROR(DecodeAndCheck(payload, size_, &contribution));
    const MutexLock lock(mutex_);
    contributions_.push_back(std::move(contribution));
    failure_->events().Notify();
  } else if (type == Message::kAllJoined) {
    AllJoined all;
    TFC_RETURN_IF_ERROR(DecodeAndCheck(payload, size_, &all));
    joined_.Clear();
    const MutexLock lock(mutex_);
    all_joined_ = all.last_rank;
    failure_->events().Notify();
  } else if (type == Message::kJoinTimeout) {
    double seconds = 0;
    TFC_RETURN_IF_ERROR(Decode(payload, &seconds));
    // The tracker has let go of everything if all have joined meanwhile: then the rank hears of that.
    if (tracker_.joined(from)) host_->FailEverywhere(NotAllJoined(seconds));
  }
  return Status::Ok();
}

Status JoinProtocol::OnJoined(const std::string& payload) {
  RanksByProgress joins;
  TFC_RETURN_IF_ERROR(DecodeAndCheck(payload, size_, &joins));
  for (const auto& [progress, ranks] : joins)
    for (const int rank : ranks) joined_.Add(rank, progress);
  std::vector<ZeroContribution> missing;
  Status refusal;
  watch_->VisitRunning([&](uint32_t channel, uint64_t sequence, const Operation& operation) {
    if (!joined_.Needs(channel, sequence)) return;
    if (!TakesZerosOn(channel, operation)) refusal = Unjoinable(operation.Describe(), joined_.ranks());
    missing.push_back(ZeroContributionOf(channel, sequence, operation));
  });
  control_->Send(0, static_cast<uint8_t>(Message::kNoted), "");
  if (!refusal.ok()) {
    host_->FailEverywhere(refusal);
    return Status::Ok();
  }
  for (const ZeroContribution& contribution : missing) Send(control_, 0, Message::kMissing, contribution);
  return Status::Ok();
}

bool JoinProtocol::Arrive(int rank, const Progress& progress) {
  monitor_.AssertHeld();
  if (!tracker_.Join(rank, progress)) {
    Announce();
    return false;
  }
  tracker_.Clear();  // no rank runs anything that another one is missing from
  SendToAll(control_, Message::kAllJoined, AllJoined{rank});
  return true;
}

void JoinProtocol::Announce() {
  monitor_.AssertHeld();
  if (!tracker_.due()) return;
  const Joins joins = tracker_.TakeAnnouncement(Deadline::Clock::now());
  if (!joins.empty()) SendToAll(control_, Message::kJoined, Grouped(joins));
}

void JoinProtocol::Order(const std::vector<JoinTracker::Order>& orders) {
  for (const JoinTracker::Order& order : orders)
    Send(control_, order.ranks, Message::kZeroContribution, order.contribution);
}

Status JoinProtocol::NotAllJoined(double timeout_s) const {
  std::vector<int> others;
  for (int rank = 0; rank < size_; ++rank)
    if (!tracker_.joined(rank)) others.push_back(rank);
  return Status(Code::kDeadlineExceeded,
                "join timed out after " + std::to_string(static_cast<int>(timeout_s + 0.5)) +
                    " s: " + RankList(others) + (others.size() == 1 ? " has" : " have") +
                    " neither joined nor called a collective",
                others.front());
}

}  // namespace tfc
