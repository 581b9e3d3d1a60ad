// The half of the engine that listens to the peers. Everything here runs on the monitor thread.
#include <algorithm>
#include <utility>

#include "executor/channels.h"
#include "executor/engine.h"
#include "executor/messages.h"
#include "executor/plan.h"

namespace tfc {
namespace {

constexpr double kTickSeconds = 0.5;       // how exactly deadlines of waiting operations are kept
constexpr double kViewSeconds = 0.5;       // how long a dispute waits for ranks that do not answer
constexpr double kRootGraceSeconds = 2.0;  // rank 0 names the missing ranks; without it we cannot

}  // namespace

void Engine::OnMessage(int from, uint8_t type, const std::string& payload) {
  switch (static_cast<Message>(type)) {
    case Message::kReady:
      return OnReady(from, payload);
    case Message::kGo:
      return OnGo(payload);
    case Message::kRequest:
      return OnRequest(from, payload);
    case Message::kVerdict:
      return OnVerdict(payload);
    case Message::kAbort:
      return OnAbort(from, payload);
    case Message::kFailed:
      return OnFailed(payload);
    case Message::kDispute:
      return OnDispute(from, payload);
    case Message::kViewQuery:
      return OnViewQuery(payload);
    case Message::kView:
      return OnView(from, payload);
    case Message::kTimeout:
      return OnTimeout(from, payload);
    case Message::kLeave:
      return OnLeave(from, payload);
    case Message::kLeft:
      return OnLeft(payload);
    case Message::kJoin:
      return OnJoin(from, payload);
    case Message::kJoined:
      return OnJoined(payload);
    case Message::kNoted:
      Order(join_desk_.Acknowledge());
      return AnnounceJoins();
    case Message::kMissing:
      return OnMissing(from, payload);
    case Message::kStandIn:
      return OnStandIn(payload);
    case Message::kAllJoined:
      return OnAllJoined(payload);
    case Message::kJoinTimeout:
      return OnJoinTimeout(from, payload);
    case Message::kForget:
      return OnForget(from, payload);
    case Message::kFreed:
      return OnFreed(payload);
    case Message::kStalled:
      return OnStalled(from, payload);
    case Message::kNote:
      if (options_.on_note) return options_.on_note(from, payload);
      break;
  }
  Protocol(Status(Code::kProtocol, "unknown control message " + std::to_string(type)), from);
}

void Engine::Protocol(const Status& malformed, int from) {
  FailAll(Status(Code::kProtocol, Call(from) + ": " + malformed.message(), from));
}

void Engine::OnReady(int from, const std::string& payload) {
  Status objection;
  const Status decoded = Decode(payload, &objection);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (gathered_objection_.ok() && !objection.ok()) gathered_objection_ = objection.WithContext(Call(from));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ready_.insert(from);
    if (static_cast<int>(ready_.size()) < options_.topology.size) return;
    ready_.clear();
  }
  const Go go{options_.probe_link, std::exchange(gathered_objection_, Status::Ok())};
  star_->SendToAll(static_cast<uint8_t>(Message::kGo), Encode(go));
}

void Engine::OnGo(const std::string& payload) {
  Go go;
  const Status decoded = Decode(payload, &go);
  if (!decoded.ok()) return Protocol(decoded, 0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    go_ = true;
    probes_ = go.probe;
    objection_ = go.objection;
  }
  changed_.notify_all();
}

void Engine::OnRequest(int from, const std::string& payload) {
  Request request;
  const Status decoded = Decode(payload, &request);
  if (!decoded.ok()) return Protocol(decoded, from);
  const std::string name = request.is_plan ? "" : request.name;
  const auto verdict = table_.Arrive(from, std::move(request), Deadline::Clock::now());
  if (verdict && verdict->only_rank != kNoPeer)
    return star_->Send(verdict->only_rank, static_cast<uint8_t>(Message::kVerdict), Encode(*verdict));
  if (verdict) return star_->SendToAll(static_cast<uint8_t>(Message::kVerdict), Encode(*verdict));
  if (!name.empty() && options_.on_wait) options_.on_wait(name);
}

void Engine::OnForget(int from, const std::string& payload) {
  const auto freed = table_.Forget(from, payload);
  if (freed) star_->SendToAll(static_cast<uint8_t>(Message::kFreed), EncodeChannel(*freed));
}

// The verdict that gives the channel to another plan comes after this, on all ranks.
void Engine::OnFreed(const std::string& payload) {
  uint32_t channel = 0;
  Status decoded = DecodeChannel(payload, &channel);
  if (decoded.ok() && (channel < kFirstPlanChannel || channel >= kFirstPlanChannel + kMaxPlans))
    decoded = Status(Code::kProtocol, "freed the channel " + std::to_string(channel) + ", which is no plan's");
  if (!decoded.ok()) return Protocol(decoded, 0);
  std::lock_guard<std::mutex> lock(mutex_);
  if (arena_ != nullptr) arena_->Release(channel);
}

void Engine::OnVerdict(const std::string& payload) {
  Verdict verdict;
  const Status decoded = Decode(payload, &verdict);
  if (!decoded.ok()) return Protocol(decoded, 0);
  StartVerdict(verdict);
}

void Engine::StartVerdict(const Verdict& verdict) {
  if (verdict.is_plan) {
    // Gradients that cannot be reduced leave the replicas apart for good: that ends the communicator.
    if (!verdict.refusal.ok()) return Fail(verdict.refusal);
    std::shared_ptr<Plan> plan;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = plans_.find(verdict.name);
      // Failed meanwhile, or the others agreed while this rank had joined: it will ask for itself.
      if (found == plans_.end() || !found->second->asked) return;
      plan = found->second;
      plan->channel = verdict.channel;
    }
    return RunBuckets(plan, verdict.channel);
  }
  std::shared_ptr<Pending> next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pending_.find(verdict.name);
    if (found == pending_.end()) return;  // failed meanwhile
    next = std::make_shared<Pending>(std::move(found->second.front()));
    found->second.pop_front();
    if (found->second.empty()) pending_.erase(found);
    if (joining_) changed_.notify_all();
  }
  const bool taken = verdict.refusal.ok()
                         ? scheduler_->Submit(kNegotiatedChannel,
                                              [this, next](const Resources& resources, Channel* channel) {
                                                const Status status =
                                                    RunWatched(next->operation, resources, next->deadline, channel);
                                                scheduler_->CallOutside([&] { next->done(status); });
                                              })
                         : scheduler_->Call([next, refusal = verdict.refusal] { next->done(refusal); });
  if (!taken) next->done(failure_.Get());
}

void Engine::OnAbort(int from, const std::string& payload) {
  Status status;
  const Status decoded = Decode(payload, &status);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (status.ok() || std::exchange(told_all_, true)) return;
  const bool passed_on = from != 0 && status.code() != Code::kAborted;
  const Status told = passed_on ? status.WithContext("rank " + std::to_string(from)) : status;
  star_->SendToAll(static_cast<uint8_t>(Message::kFailed), Encode(told));  // this rank included
}

void Engine::OnFailed(const std::string& payload) {
  Status status;
  const Status decoded = Decode(payload, &status);
  if (!decoded.ok()) return Protocol(decoded, 0);
  // Our own abort comes back: this rank has a better word for it.
  const bool own = status.code() == Code::kAborted && status.peer() == options_.topology.rank;
  if (!status.ok() && !own) Fail(status);
}

void Engine::OnDispute(int from, const std::string& payload) {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  const Status decoded = DecodePlace(payload, &channel, &sequence);
  if (!decoded.ok()) return Protocol(decoded, from);
  StartRollCall(Reason::kDispute, channel, sequence, Status::Ok());
}

void Engine::OnTimeout(int from, const std::string& payload) {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  Status timeout;
  const Status decoded = DecodeTimeout(payload, &channel, &sequence, &timeout);
  if (!decoded.ok()) return Protocol(decoded, from);
  StartRollCall(Reason::kTimeout, channel, sequence, timeout);
}

void Engine::OnStalled(int from, const std::string& payload) {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  Status warning;
  const Status decoded = DecodeTimeout(payload, &channel, &sequence, &warning);
  if (!decoded.ok()) return Protocol(decoded, from);
  WarnOfStall(channel, sequence, warning);
}

// One warning for all ranks that wait in the operation.
void Engine::WarnOfStall(uint32_t channel, uint64_t sequence, const Status& warning) {
  const auto [seen, is_new] = stalls_seen_.try_emplace(channel, sequence);
  if (!is_new && seen->second >= sequence) return;
  seen->second = sequence;
  if (roll_call_) return options_.log.Warning(warning.message());
  StartRollCall(Reason::kStall, channel, sequence, warning);
}

// What ends in an error does not wait for what ends in a warning.
void Engine::StartRollCall(Reason reason, uint32_t channel, uint64_t sequence, const Status& trouble) {
  if ((roll_call_ && roll_call_->reason != Reason::kStall) || failure_.failed()) return;
  roll_call_ = RollCall{};
  roll_call_->reason = reason;
  roll_call_->channel = channel;
  roll_call_->sequence = sequence;
  roll_call_->trouble = trouble;
  roll_call_->until = Deadline::Clock::now() + Deadline::Seconds(kViewSeconds);
  star_->SendToAll(static_cast<uint8_t>(Message::kViewQuery), EncodePlace(channel, sequence));
}

void Engine::OnViewQuery(const std::string& payload) {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  const Status decoded = DecodePlace(payload, &channel, &sequence);
  if (!decoded.ok()) return Protocol(decoded, 0);
  const std::string view = watch_.View(channel, sequence).value_or("");
  const std::string instead = view.empty() ? WaitingIn() : "";
  star_->Send(0, static_cast<uint8_t>(Message::kView), EncodeView(channel, sequence, view, instead));
}

std::string Engine::WaitingIn() const {
  const std::string running = watch_.Oldest();
  if (!running.empty()) return running;
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_.empty() ? "" : pending_.begin()->second.front().operation.Title();
}

void Engine::OnView(int from, const std::string& payload) {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  std::string view, instead;
  const Status decoded = DecodeView(payload, &channel, &sequence, &view, &instead);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (!roll_call_ || roll_call_->channel != channel || roll_call_->sequence != sequence) return;
  const auto [known, is_new] = roll_call_->views.try_emplace(from);
  if (!is_new && known->second.empty()) --roll_call_->to_come;
  if (view.empty()) ++roll_call_->to_come;
  known->second = view;
  roll_call_->instead[from] = instead;
  const bool all_answered = static_cast<int>(roll_call_->views.size()) == options_.topology.size;
  // A rank that will come to the operation soon shows what it does there; only a dispute waits for that.
  if (all_answered && (roll_call_->to_come == 0 || roll_call_->reason != Reason::kDispute)) FinishRollCall();
}

void Engine::FinishRollCall() {
  RollCall call = std::move(*roll_call_);
  roll_call_.reset();
  if (call.reason == Reason::kStall) return options_.log.Warning(WhoIsMissing(call).message());
  if (call.reason == Reason::kTimeout) return FailAll(WhoIsMissing(call));
  for (int rank = 0; rank < options_.topology.size; ++rank) {
    std::string& view = call.views[rank];
    if (view.empty()) view = "has called nothing yet";
  }
  FailAll(Status(Code::kMismatch, "the ranks disagree on collective number " + std::to_string(call.sequence + 1) +
                                      ": " + CompareViews(call.views)));
}

// The trouble in the words of the rank that saw it, and who has really kept it waiting.
Status Engine::WhoIsMissing(const RollCall& call) const {
  std::vector<int> silent, elsewhere;
  for (int rank = 0; rank < options_.topology.size; ++rank) {
    const auto view = call.views.find(rank);
    if (view == call.views.end()) {
      silent.push_back(rank);
    } else if (view->second.empty() && !join_desk_.joined(rank)) {
      elsewhere.push_back(rank);
    }
  }
  std::string text = call.trouble.message();
  int culprit = call.trouble.peer();
  if (!elsewhere.empty()) {
    text += "; " + RankList(elsewhere) + (elsewhere.size() == 1 ? " has" : " have") + " not called it";
    culprit = elsewhere.front();
    const auto busy = std::find_if(elsewhere.begin(), elsewhere.end(), [&call](int rank) {
      return call.instead.count(rank) && !call.instead.at(rank).empty();
    });
    if (busy != elsewhere.end())
      text += "; rank " + std::to_string(*busy) + " waits in " + call.instead.at(*busy) +
              ": do all ranks make the same steps, and as many of them?";
  }
  if (!silent.empty()) {
    text += "; " + RankList(silent) + (silent.size() == 1 ? " does" : " do") +
            " not answer: stopped, overloaded or cut off";
    culprit = silent.front();
  }
  return Status(Code::kDeadlineExceeded, text, culprit);
}

void Engine::OnLeave(int from, const std::string& payload) {
  Progress progress;
  const Status decoded = Decode(payload, &progress);
  if (!decoded.ok()) return Protocol(decoded, from);
  {
    // At once: its connection may end before this rank's own copy of the news is delivered.
    std::lock_guard<std::mutex> lock(mutex_);
    departed_.insert(from);
  }
  // Most ranks leave after the same operations, and the first of them says it all: a thousand that leave must not cost
  // a million messages. That rank 0 leaves is always news, because its connections end with it.
  if (departures_.Add(progress) || from == 0)
    return star_->SendToAll(static_cast<uint8_t>(Message::kLeft), EncodeLeft(from, progress));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    gone_.insert(from);
  }
  changed_.notify_all();
}

void Engine::OnLeft(const std::string& payload) {
  int rank = 0;
  Progress progress;
  const Status decoded = DecodeLeft(payload, &rank, &progress);
  if (!decoded.ok()) return Protocol(decoded, 0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    departed_.insert(rank);
    gone_.insert(rank);
  }
  changed_.notify_all();
  if (rank != options_.topology.rank) CheckDeparted(rank, progress);
}

void Engine::CheckDeparted(int rank, const Progress& progress) {
  Status blocked = watch_.Depart(rank, progress);
  if (blocked.ok()) {
    std::string waiting;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!pending_.empty()) waiting = pending_.begin()->second.front().operation.Title();
      for (const auto& [name, plan] : plans_)
        if (plan->waiting > 0 && !plan->channel) waiting = "the bucket plan '" + name + "'";
    }
    if (!waiting.empty()) blocked = watch_.NobodyLeft(waiting);
    if (blocked.ok()) blocked = LeftWithoutJoining();
  }
  if (!blocked.ok()) Fail(blocked);
}

void Engine::OnClosed(int rank, const Status& why) {
  bool expected = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    gone_.insert(rank);
    expected = closing_ || departed_.count(rank) != 0;
  }
  changed_.notify_all();
  if (expected) return;
  const Status lost(Code::kPeerLost,
                    Call(rank) + " is gone: its process ended or its link broke (" + why.message() + ")", rank);
  if (is_root()) {
    FailAll(lost);
  } else {
    Fail(lost);
  }
}

void Engine::OnDataConnection(int peer, UniqueFd fd) {
  std::function<void(int, UniqueFd)> add;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    add = add_connection_;
  }
  if (add) add(peer, std::move(fd));
}

void Engine::KeepTicking() {
  // The first waiting operation wakes the monitor, which then looks every kTickSeconds until none has come for as long.
  if (options_.topology.size > 1 && !ticking_.load() && !ticking_.exchange(true)) star_->Post([] {});
}

std::optional<Deadline::Clock::time_point> Engine::OnTick(Deadline::Clock::time_point now) {
  if (roll_call_ && now >= roll_call_->until) FinishRollCall();
  // The monitor asks after each batch of messages: what waits is not gone through for each of them.
  if (!ticking_.load() || now >= next_look_) LookAtWaiting(now);
  AnnounceJoins();
  std::optional<Deadline::Clock::time_point> next = join_desk_.due();
  const auto consider = [&next](Deadline::Clock::time_point when) { next = next ? std::min(*next, when) : when; };
  if (ticking_.load()) consider(next_look_);
  if (roll_call_) consider(roll_call_->until);
  return next;
}

void Engine::LookAtWaiting(Deadline::Clock::time_point now) {
  ticking_.store(false);  // before looking: an operation that comes later wakes the monitor again
  if (is_root()) TickNegotiation(now);
  TickPending();
  for (const WatchList::Stall& stall : watch_.Stalled(now, options_.stall_warning_s)) ReportStall(stall);
  const bool busy = watch_.active() > 0 || roll_call_ || !OldestPending().ok() || table_.waiting() > 0;
  if (busy) last_busy_ = now;
  // Operations follow each other closely: going on for one more tick spares the next ones that wake-up.
  if (now - last_busy_ > Deadline::Seconds(kTickSeconds)) return;
  ticking_.store(true);
  next_look_ = now + Deadline::Seconds(kTickSeconds);
}

void Engine::ReportStall(const WatchList::Stall& stall) {
  const std::string text = stall.title + " has been running for more than " +
                           std::to_string(static_cast<int>(options_.stall_warning_s)) + " s";
  const Status warning(Code::kDeadlineExceeded, text);
  if (is_root()) return WarnOfStall(stall.channel, stall.sequence, warning);
  star_->Send(0, static_cast<uint8_t>(Message::kStalled), EncodeTimeout(stall.channel, stall.sequence, warning));
  options_.log.Warning(text + ": rank 0 says which ranks it waits for, unless rank 0 is stopped itself");
}

void Engine::TickNegotiation(Deadline::Clock::time_point now) {
  const Status overdue = table_.Overdue(now);
  if (!overdue.ok() && !failure_.failed()) FailAll(overdue);
  for (const std::string& text : table_.Stalled(now, options_.stall_warning_s)) options_.log.Warning(text);
}

// The operation that waits longest, as the error that it will get; Ok if none waits.
Status Engine::OldestPending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::optional<std::pair<Deadline::Clock::time_point, std::string>> oldest;
  const auto consider = [&oldest](Deadline deadline, const std::string& text) {
    if (!oldest || deadline.when() < oldest->first) oldest = {deadline.when(), text};
  };
  for (const auto& [name, queue] : pending_)
    consider(queue.front().deadline, queue.front().operation.Title() + " timed out: rank 0 gave no verdict on it");
  for (const auto& [name, plan] : plans_) {
    if (plan->waiting == 0) continue;
    for (const auto& run : plan->order().Waiting())
      consider(run->deadline, run->operation.Title() + " timed out: it waits for bucket " +
                                  std::to_string(plan->order().cursor()) +
                                  " of its plan, which this rank has not started");
  }
  return oldest ? Status(Code::kDeadlineExceeded, oldest->second, options_.topology.rank) : Status::Ok();
}

void Engine::TickPending() {
  const Status oldest = OldestPending();
  if (oldest.ok() || failure_.failed()) return;
  bool overdue = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto late = [](Deadline deadline) {
      return Deadline::Clock::now() > deadline.when() + Deadline::Seconds(kRootGraceSeconds);
    };
    for (const auto& [name, queue] : pending_) overdue = overdue || late(queue.front().deadline);
    for (const auto& [name, plan] : plans_)
      for (const auto& run : plan->order().Waiting()) overdue = overdue || late(run->deadline);
  }
  if (overdue) FailAll(oldest);
}

}  // namespace tfc
