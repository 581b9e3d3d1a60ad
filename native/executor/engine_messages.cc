// The half of the engine that listens to the peers. Everything here runs on the monitor thread.
#include <algorithm>
#include <utility>

#include "agreement/messages.h"
#include "control/timing.h"
#include "executor/channels.h"
#include "executor/engine.h"
#include "executor/messages.h"
#include "executor/plan.h"

namespace tfc {
void Engine::OnMessage(int from, uint8_t type, const std::string& payload) {
  monitor_.AssertHeld();
  switch (static_cast<Message>(type)) {
    case Message::kReady:
      return OnReady(from, payload);
    case Message::kGo:
      return OnGo(payload);
    case Message::kRequest:
      return OnRequest(from, payload);
    case Message::kDecision:
      return OnDecision(payload);
    case Message::kAbort:
      return OnAbort(from, payload);
    case Message::kFailed:
      return OnFailed(payload);
    case Message::kTrouble:
      return OnTrouble(from, payload);
    case Message::kViewQuery:
      return OnViewQuery(payload);
    case Message::kView:
      return OnView(from, payload);
    case Message::kLeave:
      return OnLeave(from, payload);
    case Message::kLeft:
      return OnLeft(payload);
    case Message::kJoin:
      return OnJoin(from, payload);
    case Message::kForget:
      return OnForget(from, payload);
    case Message::kFreed:
      return OnFreed(payload);
    case Message::kJoined:
    case Message::kNoted:
    case Message::kMissing:
    case Message::kZeroContribution:
    case Message::kAllJoined:
    case Message::kJoinTimeout:
      return OnJoining(from, static_cast<Message>(type), payload);
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
  if (!objection.ok()) objection = objection.WithContext(Call(from));
  const auto gathered = set_up_.Arrive(from, objection);
  if (gathered) control_->SendToAll(static_cast<uint8_t>(Message::kGo), Encode(Go{options_.probe_link, *gathered}));
}

void Engine::OnGo(const std::string& payload) {
  Go go;
  const Status decoded = Decode(payload, &go);
  if (!decoded.ok()) return Protocol(decoded, 0);
  set_up_.Open(go);
}

void Engine::OnRequest(int from, const std::string& payload) {
  Request request;
  const Status decoded = Decode(payload, &request);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (const auto decision = table_.Arrive(from, std::move(request), Deadline::Clock::now())) Announce(*decision);
}

void Engine::Announce(const Decision& decision) {
  if (decision.ends_all) return FailAll(decision.refusal);
  const auto type = static_cast<uint8_t>(Message::kDecision);
  if (decision.only_rank != kNoPeer) return control_->Send(decision.only_rank, type, Encode(decision));
  control_->SendToAll(type, Encode(decision));
}

void Engine::OnForget(int from, const std::string& payload) {
  const auto freed = table_.Forget(from, payload);
  if (freed) control_->SendToAll(static_cast<uint8_t>(Message::kFreed), EncodeChannel(*freed));
}

// The decision that gives the channel to another plan comes after this, on all ranks.
void Engine::OnFreed(const std::string& payload) {
  uint32_t channel = 0;
  Status decoded = DecodeChannel(payload, &channel);
  if (decoded.ok() && (channel < kFirstPlanChannel || channel >= kFirstPlanChannel + kMaxPlans))
    decoded = Status(Code::kProtocol, "freed the channel " + std::to_string(channel) + ", which is no plan's");
  if (!decoded.ok()) return Protocol(decoded, 0);
  const MutexLock lock(mutex_);
  if (arena_ != nullptr) arena_->Release(channel);
}

void Engine::OnDecision(const std::string& payload) {
  Decision decision;
  Status decoded = Decode(payload, &decision);
  if (decoded.ok() && !decision.blobs.empty() && static_cast<int>(decision.blobs.size()) != options_.topology.size)
    decoded = Status(Code::kProtocol, "a decision for another number of ranks");
  if (!decoded.ok()) return Protocol(decoded, 0);
  if (decision.subject == Subject::kPlan) return StartPlan(decision);
  if (!decision.on_gpus) return StartOperation(decision);
  if (options_.on_gpu_decision) options_.on_gpu_decision(decision);
}

void Engine::StartPlan(const Decision& decision) {
  std::shared_ptr<Plan> plan;
  {
    const MutexLock lock(mutex_);
    const auto found = plans_.find(decision.name);
    // Failed meanwhile, or the others agreed while this rank had joined: it will ask for itself.
    if (found == plans_.end() || !found->second->asked) return;
    plan = found->second;
    plan->channel = decision.channel;
  }
  RunBuckets(plan, decision.channel);
}

void Engine::StartOperation(const Decision& decision) {
  std::shared_ptr<Pending> next;
  {
    const MutexLock lock(mutex_);
    const auto found = pending_.find(decision.name);
    if (found == pending_.end()) return;  // failed meanwhile
    next = std::make_shared<Pending>(std::move(found->second.front()));
    found->second.pop_front();
    if (found->second.empty()) pending_.erase(found);
    if (Is(kJoining)) failure_.events().Notify();
  }
  const bool taken = decision.refusal.ok()
                         ? scheduler_->Submit(kNegotiatedChannel,
                                              [this, next](const Resources& resources, Channel* channel) {
                                                const Status status =
                                                    RunWatched(next->operation, resources, next->deadline, channel);
                                                scheduler_->CallOutside([&] { next->done(status); });
                                              })
                         : scheduler_->Call([next, refusal = decision.refusal] { next->done(refusal); });
  if (!taken) next->done(failure_.Get());
}

void Engine::OnAbort(int from, const std::string& payload) {
  Status status;
  const Status decoded = Decode(payload, &status);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (!status.ok()) Observe({FailureArbiter::Event::kReport, status, {}, from});
}

void Engine::OnFailed(const std::string& payload) {
  Status status;
  const Status decoded = Decode(payload, &status);
  if (!decoded.ok()) return Protocol(decoded, 0);
  if (!status.ok()) Observe({FailureArbiter::Event::kDecision, status});
}

void Engine::OnTrouble(int from, const std::string& payload) {
  FailureArbiter::Observation trouble;
  const Status decoded = Decode(payload, &trouble);
  if (!decoded.ok()) return Protocol(decoded, from);
  trouble.rank = from;
  Observe(trouble);
}

void Engine::Observe(const FailureArbiter::Observation& seen) {
  const auto now = Deadline::Clock::now();
  if (failure_.failed()) Act(arbiter_.On({FailureArbiter::Event::kFailedHere}, now));
  Act(arbiter_.On(seen, now));
}

void Engine::Act(const FailureArbiter::Action& action) {
  using Kind = FailureArbiter::Action::Kind;
  switch (action.kind) {
    case Kind::kNone:
      return;
    case Kind::kAskRoot:
      control_->Send(0, static_cast<uint8_t>(Message::kTrouble),
                     Encode(FailureArbiter::Observation{action.about, action.status, action.place}));
      if (action.about == FailureArbiter::Event::kSlow)
        options_.log.Warning(action.status.message() +
                             ": rank 0 says which ranks it waits for, unless rank 0 is stopped itself");
      return;
    case Kind::kAskViews:
      return control_->SendToAll(static_cast<uint8_t>(Message::kViewQuery), Encode(action.place));
    case Kind::kWarn:
      return options_.log.Warning(action.status.message());
    case Kind::kFailHere:
      return Fail(action.status);
    case Kind::kFailEverywhere:
      return FailAll(action.status);
    case Kind::kSendAll:
      return control_->SendToAll(static_cast<uint8_t>(Message::kFailed), Encode(action.status));
  }
}

void Engine::OnViewQuery(const std::string& payload) {
  Place place;
  const Status decoded = Decode(payload, &place);
  if (!decoded.ok()) return Protocol(decoded, 0);
  FailureArbiter::View view = watch_.View(place.channel, place.sequence);
  if (view.text.empty()) view.instead = WaitingIn();
  control_->Send(0, static_cast<uint8_t>(Message::kView), Encode(view));
}

std::string Engine::WaitingIn() const {
  const std::string running = watch_.Oldest();
  if (!running.empty()) return running;
  const MutexLock lock(mutex_);
  return pending_.empty() ? "" : pending_.begin()->second.front().operation.Title();
}

void Engine::OnView(int from, const std::string& payload) {
  FailureArbiter::View view;
  const Status decoded = Decode(payload, &view);
  if (!decoded.ok()) return Protocol(decoded, from);
  view.excused = joining_.has_joined(from);
  Act(arbiter_.OnView(from, std::move(view)));
}

// Most ranks leave after the same operations, and the first of them says it all: a thousand that leave must not cost a
// million messages.
void Engine::OnLeave(int from, const std::string& payload) {
  Progress progress;
  const Status decoded = Decode(payload, &progress);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (departures_.Announce(from, progress))
    control_->SendToAll(static_cast<uint8_t>(Message::kLeft), EncodeLeft(from, progress));
}

void Engine::OnLeft(const std::string& payload) {
  int rank = 0;
  Progress progress;
  const Status decoded = DecodeLeft(payload, &rank, &progress);
  if (!decoded.ok()) return Protocol(decoded, 0);
  departures_.Leave(rank);
  if (rank == options_.topology.rank) return;
  Status blocked = BlockedBy(rank, progress);
  if (blocked.ok() && options_.on_left) blocked = options_.on_left();
  if (!blocked.ok()) Observe({FailureArbiter::Event::kBlocked, blocked});
}

// PEER_LOST if something that runs or waits here needs `rank`, which has left after `progress`.
Status Engine::BlockedBy(int rank, const Progress& progress) {
  TFC_RETURN_IF_ERROR(watch_.Depart(rank, progress));
  std::string waiting;
  {
    const MutexLock lock(mutex_);
    if (!pending_.empty()) waiting = pending_.begin()->second.front().operation.Title();
    for (const auto& [name, plan] : plans_)
      if (plan->waiting > 0 && !plan->channel) waiting = "the bucket plan '" + name + "'";
  }
  if (!waiting.empty()) TFC_RETURN_IF_ERROR(watch_.NobodyLeft(waiting));
  return joining_.LeftWithoutJoining();
}

void Engine::OnClosed(int rank, const Status& why) {
  monitor_.AssertHeld();
  if (departures_.Close(rank) || Is(kClosing)) return;
  Observe({FailureArbiter::Event::kLost,
           Status(Code::kPeerLost, Call(rank) + " is gone: its process ended or its link broke (" + why.message() + ")",
                  rank)});
}

void Engine::OnJoin(int from, const std::string& payload) {
  Progress progress;
  const Status decoded = Decode(payload, &progress);
  if (!decoded.ok()) return Protocol(decoded, from);
  if (joining_.has_joined(from)) return Protocol(Status(Code::kProtocol, "joined twice"), from);
  if (joining_.Arrive(from, progress)) return table_.Return();
  for (const Decision& decision : table_.Join(from)) Announce(decision);
}

void Engine::OnJoining(int from, Message type, const std::string& payload) {
  // Before this rank says that it knows: an operation that ends after that looks who has joined.
  if (type == Message::kJoined) unusual_ |= kSomeJoined;
  const Status handled = joining_.OnMessage(from, type, payload);
  if (!handled.ok()) return Protocol(handled, from);
  if (type == Message::kAllJoined) unusual_ &= ~uint32_t{kSomeJoined};
}

void Engine::OnDataConnection(int peer, UniqueFd fd) {
  std::function<void(int, UniqueFd)> add;
  {
    const MutexLock lock(mutex_);
    add = add_connection_;
  }
  if (add) add(peer, std::move(fd));
}

void Engine::KeepTicking() {
  // The first waiting operation wakes the monitor, which then looks every timing::kTick until none has come for as
  // long.
  if (options_.topology.size > 1 && !ticking_.load() && !ticking_.exchange(true)) control_->Post([] {});
}

std::optional<Deadline::Clock::time_point> Engine::OnTick(Deadline::Clock::time_point now) {
  monitor_.AssertHeld();
  if (arbiter_.due() && failure_.failed()) Act(arbiter_.On({FailureArbiter::Event::kFailedHere}, now));
  Act(arbiter_.OnTime(now));
  // The monitor asks after each batch of messages: what waits is not gone through for each of them.
  if (!ticking_.load() || now >= next_look_) LookAtWaiting(now);
  joining_.Announce();
  std::optional<Deadline::Clock::time_point> next = joining_.due();
  const auto consider = [&next](Deadline::Clock::time_point when) { next = next ? std::min(*next, when) : when; };
  if (ticking_.load()) consider(next_look_);
  if (arbiter_.due()) consider(*arbiter_.due());
  return next;
}

void Engine::LookAtWaiting(Deadline::Clock::time_point now) {
  ticking_.store(false);  // before looking: an operation that comes later wakes the monitor again
  if (is_root()) TickNegotiation(now);
  TickPending();
  for (const WatchList::Stall& stall : watch_.Stalled(now, options_.stall_warning_s)) {
    const std::string text = stall.title + " has been running for more than " +
                             std::to_string(static_cast<int>(options_.stall_warning_s)) + " s";
    Observe({FailureArbiter::Event::kSlow, Status(Code::kDeadlineExceeded, text), {stall.channel, stall.sequence}});
  }
  const bool busy = watch_.active() > 0 || !OldestPending().ok() || table_.waiting() > 0;
  if (busy) last_busy_ = now;
  // Operations follow each other closely: going on for one more tick spares the next ones that wake-up.
  if (now - last_busy_ > Deadline::Seconds(timing::kTick)) return;
  ticking_.store(true);
  next_look_ = now + Deadline::Seconds(timing::kTick);
}

void Engine::TickNegotiation(Deadline::Clock::time_point now) {
  const Status overdue = table_.Overdue(now);
  if (!overdue.ok() && !failure_.failed()) FailAll(overdue);
  for (const std::string& text : table_.Stalled(now, options_.stall_warning_s)) options_.log.Warning(text);
}

// The operation that waits longest, as the error that it will get; Ok if none waits.
Status Engine::OldestPending() const {
  const MutexLock lock(mutex_);
  std::optional<std::pair<Deadline::Clock::time_point, std::string>> oldest;
  const auto consider = [&oldest](Deadline deadline, const std::string& text) {
    if (!oldest || deadline.when() < oldest->first) oldest = {deadline.when(), text};
  };
  for (const auto& [name, queue] : pending_)
    consider(queue.front().deadline, queue.front().operation.Title() + " timed out: rank 0 has not decided about it");
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
    const MutexLock lock(mutex_);
    const auto late = [](Deadline deadline) {
      return Deadline::Clock::now() > deadline.when() + Deadline::Seconds(timing::kRootGrace);
    };
    for (const auto& [name, queue] : pending_) overdue = overdue || late(queue.front().deadline);
    for (const auto& [name, plan] : plans_)
      for (const auto& run : plan->order().Waiting()) overdue = overdue || late(run->deadline);
  }
  if (overdue) FailAll(oldest);
}

}  // namespace tfc
