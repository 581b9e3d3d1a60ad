// The engine's part for ranks that have run out of data: see joining.h.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cpu/algorithms/pieces.h"
#include "control/timing.h"
#include "executor/channels.h"
#include "executor/engine.h"
#include "executor/messages.h"
#include "executor/plan.h"

namespace tfc {
namespace {

bool IsAverage(const Operation& operation) {
  return operation.collective == Collective::kAllReduce && operation.op == Op::kAverage;
}

// What cannot be corrected once it is divided, because the division has dropped a remainder: it is divided when the
// sum is complete, and with it known who has contributed.
bool DividesLate(const Operation& operation) { return IsAverage(operation) && operation.AveragesIntegers(); }

ConstSpans Readable(const MutableSpans& spans) {
  ConstSpans readable;
  for (const MutableSpan& span : spans) readable.push_back({span.data, span.size});
  return readable;
}

// Multiplies the result by `factor` and divides it by `divisor`.
void Correct(const Operation& operation, int factor, int divisor) {
  if (factor == divisor) return;
  Reduction correction;
  correction.dtype = operation.dtype;
  correction.postscale = factor;
  correction.divisor = divisor;
  ScaleSpans(correction, Readable(operation.output), operation.output);
}

}  // namespace

// ---- operations that joined ranks may be missing from -------------------------------------------

// An average is of the ranks that contribute. How many those are is certain only when the operation has
// ended: a rank that joins may be missing from one that the others have begun already. So all ranks
// divide by what is certain at the beginning, and correct the first average without a rank afterwards.
Status Engine::ExecuteWithJoined(const Operation& operation, const Resources& resources, Deadline deadline,
                                 Channel* channel, const Prepared* prepared) {
  const uint64_t sequence = channel->sequence;
  const bool divides_late = DividesLate(operation) && options_.topology.size > 1;
  if (!divides_late && !joined_.any()) {
    Status status = ExecuteSafely(options_.topology, operation, resources, deadline, channel, prepared);
    if (!status.ok() || !joined_.any() || !IsAverage(operation)) return status;
  } else {
    TFC_RETURN_IF_ERROR(CallJoined(operation, channel->index, sequence));
    Operation counted = operation;
    if (divides_late) {
      // A stand-in, whose result is not read, may find no contributors.
      counted.count_contributors = [this, index = channel->index, sequence] {
        return std::max(1, joined_.ContributorsOf(index, sequence).now);
      };
      return ExecuteSafely(options_.topology, counted, resources, deadline, channel);
    }
    counted.contributors = joined_.ContributorsOf(channel->index, sequence).before;
    const Status status = ExecuteSafely(options_.topology, counted, resources, deadline, channel);
    if (!status.ok() || !IsAverage(operation)) return status;
  }
  const auto contributors = joined_.ContributorsOf(channel->index, sequence);
  if (contributors.now == 0) return Status::Ok();  // a stand-in that nobody reads
  Correct(operation, contributors.before, contributors.now);
  return Status::Ok();
}

// Lets rank 0 tell the joined ranks that they are missing from this operation.
Status Engine::CallJoined(const Operation& operation, uint32_t channel, uint64_t sequence) {
  if (!joined_.Needs(channel, sequence)) return Status::Ok();
  if (!TakesStandIns(operation)) {
    FailAll(Unjoinable(operation.Describe(), joined_.ranks()));
    return failure_.Get();
  }
  star_->Send(0, static_cast<uint8_t>(Message::kMissing), Encode(StandInOf(channel, sequence, operation)));
  return Status::Ok();
}

// ---- the rank that joins ------------------------------------------------------------------------

Result<int> Engine::Join(double timeout_s) {
  TFC_RETURN_IF_ERROR(Admit());
  if (options_.topology.size == 1) return 0;
  if (OnOwnThread()) return Status(Code::kFailedPrecondition, "a callback must not join");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TFC_RETURN_IF_ERROR(Admit());
    joining_ = true;
  }
  const Status left = LeftWithoutJoining();
  if (!left.ok()) Fail(left);
  const Status begun = BeginJoin();
  Result<int> last = begun.ok() ? StandInUntilAllJoin(timeout_s > 0 ? timeout_s : options_.op_timeout_s) : begun;
  std::lock_guard<std::mutex> lock(mutex_);
  joining_ = false;
  all_joined_.reset();
  stand_ins_.clear();
  return last;
}

Status Engine::BeginJoin() {
  TFC_RETURN_IF_ERROR(WaitUntilNothingRuns());
  star_->Send(0, static_cast<uint8_t>(Message::kJoin), Encode(watch_.progress()));
  return Status::Ok();
}

// What this rank has begun counts as its own. It ends by its own deadlines.
Status Engine::WaitUntilNothingRuns() {
  {
    std::lock_guard<OwnedMutex> callers(inline_mutex_);
  }
  std::vector<uint32_t> channels{kNegotiatedChannel, kDirectChannel};
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] {
      const bool plans_wait =
          std::any_of(plans_.begin(), plans_.end(), [](const auto& entry) { return entry.second->waiting > 0; });
      return failure_.failed() || (pending_.empty() && !plans_wait);
    });
    for (const auto& [name, plan] : plans_)
      if (plan->channel && *plan->channel != kNoPlanChannel) channels.push_back(*plan->channel);
  }
  std::mutex mutex;
  std::condition_variable passed;
  size_t open = 0;
  for (uint32_t channel : channels) {
    std::lock_guard<std::mutex> lock(mutex);
    open += scheduler_->Submit(channel, [&](const Resources&, Channel*) {
      std::lock_guard<std::mutex> marker(mutex);
      --open;
      passed.notify_all();
    });
  }
  std::unique_lock<std::mutex> lock(mutex);
  passed.wait(lock, [&open] { return open == 0; });
  return failure_.Get();
}

Result<int> Engine::StandInUntilAllJoin(double timeout_s) {
  Deadline deadline = Deadline::After(timeout_s);
  bool asked = false;  // rank 0, who alone knows of all joins
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const bool woken = changed_.wait_until(lock, deadline.when(),
                                           [this] { return failure_.failed() || all_joined_ || !stand_ins_.empty(); });
    if (failure_.failed()) return failure_.Get();
    if (!woken && !std::exchange(asked, true)) {
      star_->Send(0, static_cast<uint8_t>(Message::kJoinTimeout), EncodeSeconds(timeout_s));
      deadline = Deadline::After(timing::kRootAnswer);
      continue;
    }
    if (!woken) {
      lock.unlock();
      FailAll(Status(Code::kDeadlineExceeded, "join timed out: rank 0 does not answer", 0));
      return failure_.Get();
    }
    if (stand_ins_.empty()) {
      const int last = *all_joined_;
      lock.unlock();
      // Our part in the last operations may still be under way, though the others have ended them.
      TFC_RETURN_IF_ERROR(WaitUntilNothingRuns());
      return last;
    }
    const StandIn stand_in = std::move(stand_ins_.front());
    stand_ins_.pop_front();
    lock.unlock();
    Take(stand_in);
    lock.lock();
    deadline = Deadline::After(timeout_s);
    asked = false;
  }
}

void Engine::Take(const StandIn& stand_in) {
  if (stand_in.channel == kInlineChannel) {
    std::lock_guard<OwnedMutex> callers(inline_mutex_);
    return RunStandIn(stand_in, Resources{nullptr, arena_, caller_waiter_.get()}, &inline_channel_);
  }
  scheduler_->Submit(stand_in.channel, [this, stand_in](const Resources& resources, Channel* channel) {
    RunStandIn(stand_in, resources, channel);
  });
}

void Engine::RunStandIn(const StandIn& stand_in, const Resources& resources, Channel* channel) {
  if (stand_in.sequence != channel->sequence)
    return FailAll(Status(Code::kInternal, stand_in.operation.Title() + ": a joined rank is at operation " +
                                               std::to_string(channel->sequence) + " of a channel, not at " +
                                               std::to_string(stand_in.sequence)));
  std::vector<std::byte> zeros;
  try {
    zeros.resize(stand_in.bytes);
  } catch (const std::exception&) {
    return FailAll(Status(Code::kResourceExhausted, stand_in.operation.Title() + ": no memory for " +
                                                        std::to_string(stand_in.bytes) + " bytes of zeros"));
  }
  Operation operation = stand_in.operation;
  operation.input = {{zeros.data(), zeros.size()}};
  operation.output = {{zeros.data(), zeros.size()}};
  const Deadline deadline = Start(&operation);
  // A failure has been told to all ranks, and ends the join.
  static_cast<void>(RunWatched(operation, resources, deadline, channel));
}

// PEER_LOST if this rank waits in vain.
Status Engine::LeftWithoutJoining() const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!joining_ || all_joined_) return Status::Ok();
  }
  const Status left = watch_.NobodyLeft("join");
  if (left.ok()) return left;
  return Status(
      Code::kPeerLost,
      "rank " + std::to_string(left.peer()) + " has left without joining: every rank calls join at the end of its data",
      left.peer());
}

Status Engine::NotAllJoined(double timeout_s) const {
  std::vector<int> others;
  for (int rank = 0; rank < options_.topology.size; ++rank)
    if (!join_desk_.joined(rank)) others.push_back(rank);
  return Status(Code::kDeadlineExceeded,
                "join timed out after " + std::to_string(static_cast<int>(timeout_s + 0.5)) +
                    " s: " + RankList(others) + (others.size() == 1 ? " has" : " have") +
                    " neither joined nor called a collective",
                others.front());
}

// ---- messages (monitor thread) ------------------------------------------------------------------

void Engine::OnJoin(int from, const std::string& payload) {
  Progress progress;
  const Status decoded = Decode(payload, &progress);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (join_desk_.joined(from)) return Protocol(Status(Code::kProtocol, "joined twice"), from);
  if (join_desk_.Join(from, progress)) {
    // No rank runs anything that another one is missing from.
    join_desk_.Clear();
    table_.Return();
    return star_->SendToAll(static_cast<uint8_t>(Message::kAllJoined), EncodeRank(from));
  }
  AnnounceJoins();
  for (const Verdict& verdict : table_.Join(from))
    star_->SendToAll(static_cast<uint8_t>(Message::kVerdict), Encode(verdict));
}

void Engine::AnnounceJoins() {
  if (!join_desk_.due()) return;
  const Joins joins = join_desk_.TakeAnnouncement(Deadline::Clock::now());
  if (!joins.empty()) star_->SendToAll(static_cast<uint8_t>(Message::kJoined), Encode(joins));
}

// The desk has let go of everything if all have joined meanwhile: then the rank hears of that.
void Engine::OnJoinTimeout(int from, const std::string& payload) {
  double seconds = 0;
  const Status decoded = DecodeSeconds(payload, &seconds);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (join_desk_.joined(from)) FailAll(NotAllJoined(seconds));
}

void Engine::OnJoined(const std::string& payload) {
  Joins joins;
  const Status decoded = Decode(payload, &joins);
  if (!decoded.ok()) return Protocol(decoded, 0);
  for (const auto& [rank, progress] : joins) joined_.Add(rank, progress);
  std::vector<StandIn> missing;
  Status refusal;
  watch_.VisitRunning([&](uint32_t channel, uint64_t sequence, const Operation& operation) {
    if (!joined_.Needs(channel, sequence)) return;
    if (!TakesStandIns(operation)) refusal = Unjoinable(operation.Describe(), joined_.ranks());
    missing.push_back(StandInOf(channel, sequence, operation));
  });
  star_->Send(0, static_cast<uint8_t>(Message::kNoted), "");
  if (!refusal.ok()) return FailAll(refusal);
  for (const StandIn& stand_in : missing) star_->Send(0, static_cast<uint8_t>(Message::kMissing), Encode(stand_in));
}

void Engine::OnMissing(int from, const std::string& payload) {
  StandIn stand_in;
  const Status decoded = Decode(payload, &stand_in);
  if (!decoded.ok()) return Protocol(decoded, from);
  Order(join_desk_.Ask(std::move(stand_in)));
  AnnounceJoins();
}

void Engine::Order(const std::vector<JoinDesk::Order>& orders) {
  for (const JoinDesk::Order& order : orders)
    star_->Send(order.ranks, static_cast<uint8_t>(Message::kStandIn), Encode(order.stand_in));
}

void Engine::OnStandIn(const std::string& payload) {
  StandIn stand_in;
  const Status decoded = Decode(payload, &stand_in);
  if (!decoded.ok()) return Protocol(decoded, 0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stand_ins_.push_back(std::move(stand_in));
  }
  changed_.notify_all();
}

void Engine::OnAllJoined(const std::string& payload) {
  int last = 0;
  const Status decoded = DecodeRank(payload, &last);
  if (!decoded.ok()) return Protocol(decoded, 0);
  joined_.Clear();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    all_joined_ = last;
  }
  changed_.notify_all();
}

}  // namespace tfc
