// The half of the engine that listens to the peers. Everything here runs on the monitor thread.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/callers.h"
#include "control/timing.h"
#include "executor/channels.h"
#include "executor/engine.h"
#include "executor/messages.h"
#include "executor/plan.h"

namespace tfc {
void Engine::OnMessage(int from, uint8_t type, const std::string& payload) {
  monitor_.AssertHeld();
  const Status taken = Take(from, static_cast<Message>(type), payload);
  if (!taken.ok()) Protocol("control message " + std::to_string(type) + ": " + taken.message(), from);
}

Status Engine::Take(int from, Message type, const std::string& payload) {
  TFC_RETURN_IF_ERROR(CheckDirection(type, from, options_.topology.rank));
  switch (type) {
    case Message::kReady:
      return Give(&Engine::OnReady, from, payload);
    case Message::kGo:
      return Give(&Engine::OnGo, from, payload);
    case Message::kRequest:
      return Give(&Engine::OnRequest, from, payload);
    case Message::kDecision:
      return Give(&Engine::OnDecision, from, payload);
    case Message::kAbort:
      return Give(&Engine::OnAbort, from, payload);
    case Message::kFailed:
      return Give(&Engine::OnFailed, from, payload);
    case Message::kTrouble:
      return Give(&Engine::OnTrouble, from, payload);
    case Message::kViewQuery:
      return Give(&Engine::OnViewQuery, from, payload);
    case Message::kView:
      return Give(&Engine::OnView, from, payload);
    case Message::kLeave:
      return Give(&Engine::OnLeave, from, payload);
    case Message::kLeft:
      return Give(&Engine::OnLeft, from, payload);
    case Message::kJoin:
      return Give(&Engine::OnJoin, from, payload);
    case Message::kForget:
      return Give(&Engine::OnForget, from, payload);
    case Message::kFreed:
      return Give(&Engine::OnFreed, from, payload);
    case Message::kStandstill:
      return Give(&Engine::OnStandstill, from, payload);
    case Message::kStandstillQuery:
      return Give(&Engine::OnStandstillQuery, from, payload);
    case Message::kJoined:
    case Message::kNoted:
    case Message::kMissing:
    case Message::kZeroContribution:
    case Message::kAllJoined:
    case Message::kJoinTimeout:
      return OnJoining(from, type, payload);
  }
  return Status(Code::kProtocol, "of no known kind");
}

template <typename Body>
Status Engine::Give(void (Engine::*handle)(int, Body), int from, const std::string& payload) {
  std::decay_t<Body> body;
  TFC_RETURN_IF_ERROR(DecodeAndCheck(payload, options_.topology.size, &body));
  (this->*handle)(from, std::move(body));
  return Status::Ok();
}

void Engine::Protocol(const std::string& wrong, int from) {
  FailAll(Status(Code::kProtocol, Call(from) + ": " + wrong, from));
}

void Engine::OnReady(int from, const Status& objection) {
  const auto gathered = set_up_.Arrive(from, objection.ok() ? objection : objection.WithContext(Call(from)));
  if (gathered) SendToAll(control_, Message::kGo, Go{options_.probe_link, *gathered});
}

void Engine::OnGo(int, const Go& go) { set_up_.Open(go); }

void Engine::OnRequest(int from, Request request) {
  if (const auto decision = table_.Arrive(from, std::move(request), Deadline::Clock::now())) Announce(*decision);
}

void Engine::Announce(const Decision& decision) {
  if (decision.ends_all) return FailAll(decision.refusal);
  if (decision.only_rank != kNoPeer) return Send(control_, decision.only_rank, Message::kDecision, decision);
  SendToAll(control_, Message::kDecision, decision);
}

void Engine::OnForget(int from, const std::string& plan) {
  const auto freed = table_.Forget(from, plan);
  if (freed) SendToAll(control_, Message::kFreed, Freed{*freed});
}

// The decision that gives the channel to another plan comes after this, on all ranks.
void Engine::OnFreed(int, const Freed& freed) {
  const MutexLock lock(mutex_);
  if (arena_ != nullptr && IsPlanChannel(freed.channel)) arena_->Release(freed.channel);
}

void Engine::OnDecision(int, const Decision& decision) {
  if (decision.subject == Subject::kPlan) return StartPlan(decision);
  Device* const device = decision.on_gpus ? device_ : host_.get();
  if (device != nullptr) device->Decide(decision);
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
  plan->device->Enqueue(plan, decision.channel);
}

void Engine::OnAbort(int from, const Status& status) {
  if (!status.ok()) Observe({FailureArbiter::Event::kReport, status, {}, from});
}

void Engine::OnFailed(int, const Status& status) {
  if (!status.ok()) Observe({FailureArbiter::Event::kDecision, status});
}

void Engine::OnTrouble(int from, FailureArbiter::Observation trouble) {
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
      Send(control_, 0, Message::kTrouble, FailureArbiter::Observation{action.about, action.status, action.place});
      if (action.about == FailureArbiter::Event::kSlow)
        options_.log.Warning(action.status.message() +
                             ": rank 0 says which ranks it waits for, unless rank 0 is stopped itself");
      return;
    case Kind::kAskViews:
      return SendToAll(control_, Message::kViewQuery, action.place);
    case Kind::kWarn:
      return options_.log.Warning(action.status.message());
    case Kind::kReport:
      return Send(control_, 0, Message::kAbort, action.status);
    case Kind::kFailHere:
      return Fail(action.status);
    case Kind::kFailEverywhere:
      return FailAll(action.status);
    case Kind::kSendAll:
      return SendToAll(control_, Message::kFailed, action.status);
  }
}

void Engine::OnViewQuery(int, const Place& place) {
  FailureArbiter::View view = watch_.View(place.channel, place.sequence);
  if (view.text.empty()) view.instead = WaitingIn();
  Send(control_, 0, Message::kView, view);
}

std::string Engine::WaitingIn() const {
  const std::string running = watch_.Oldest();
  if (!running.empty()) return running;
  const MutexLock lock(mutex_);
  return pending_.empty() ? "" : pending_.begin()->second.front().operation.Title();
}

void Engine::OnView(int from, FailureArbiter::View view) {
  view.excused = joining_.has_joined(from);
  Act(arbiter_.OnView(from, std::move(view)));
}

// Most ranks leave after the same operations, and the first of them says it all: a thousand that leave must not cost a
// million messages.
void Engine::OnLeave(int from, const Progress& progress) {
  if (departures_.Announce(from, progress)) SendToAll(control_, Message::kLeft, Left{from, progress});
}

void Engine::OnLeft(int, const Left& left) {
  departures_.Leave(left.rank);
  if (left.rank == options_.topology.rank) return;
  Status blocked = BlockedBy(left.rank, left.progress);
  if (blocked.ok() && device_ != nullptr) blocked = device_->CheckDepartures();
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
      // Not agreed on yet, or on their way to be matched by name.
      if (plan->waiting > 0 && plan->channel.value_or(kNoPlanChannel) == kNoPlanChannel)
        waiting = "the bucket plan '" + name + "'";
  }
  if (!waiting.empty()) TFC_RETURN_IF_ERROR(watch_.CheckNoneLeft(waiting));
  return joining_.LeftWithoutJoining();
}

void Engine::OnClosed(int rank, const Status& why) {
  monitor_.AssertHeld();
  if (departures_.Close(rank) || Is(kClosing)) return;
  Observe({FailureArbiter::Event::kLost,
           Status(Code::kPeerLost, Call(rank) + " is gone: its process ended or its link broke (" + why.message() + ")",
                  rank)});
}

void Engine::OnJoin(int from, const Progress& progress) {
  if (joining_.has_joined(from)) return Protocol("joined twice", from);
  if (joining_.Arrive(from, progress)) return table_.Return();
  for (const Decision& decision : table_.Join(from)) Announce(decision);
}

Status Engine::OnJoining(int from, Message type, const std::string& payload) {
  // Before this rank says that it knows: an operation that ends after that looks who has joined.
  if (type == Message::kJoined) unusual_ |= kSomeJoined;
  TFC_RETURN_IF_ERROR(joining_.OnMessage(from, type, payload));
  if (type == Message::kAllJoined) unusual_ &= ~uint32_t{kSomeJoined};
  return Status::Ok();
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
  const auto oldest = OldestPending();
  if (oldest && now > oldest->first.when() + Deadline::Seconds(timing::kRootGrace) && !failure_.failed())
    FailAll(Status(Code::kDeadlineExceeded, oldest->second, options_.topology.rank));
  for (const WatchList::Stall& stall : watch_.Stalled(now, options_.stall_warning_s)) {
    const std::string text = stall.title + " has been running for more than " +
                             std::to_string(static_cast<int>(options_.stall_warning_s)) + " s";
    Observe({FailureArbiter::Event::kSlow, Status(Code::kDeadlineExceeded, text), {stall.channel, stall.sequence}});
  }
  LookForStandstill(now);
  const bool busy = watch_.active() > 0 || oldest || table_.waiting() > 0;
  if (busy) last_busy_ = now;
  // Operations follow each other closely: going on for one more tick spares the next ones that wake-up.
  if (now - last_busy_ > Deadline::Seconds(timing::kTick)) return;
  ticking_.store(true);
  next_look_ = now + Deadline::Seconds(timing::kTick);
}

// Something here is not only waited for: this rank may go on by itself, and others must wait for it.
bool Engine::MayGoOn() const {
  if (unusual_.load() != 0 || !OneProgramThreadCalls()) return true;
  bool elsewhere = false;  // on GPUs, which are not watched for this
  watch_.VisitRunning([&elsewhere](uint32_t channel, uint64_t, const Operation&) {
    elsewhere = elsewhere || channel >= kProbeChannel;
  });
  if (elsewhere) return true;
  const MutexLock lock(mutex_);
  return std::any_of(plans_.begin(), plans_.end(), [this](const auto& entry) {
    const Plan& plan = *entry.second;
    if (plan.unfinished == 0) return false;
    const bool agreed = plan.channel.value_or(kNoPlanChannel) != kNoPlanChannel;
    // None of its buckets runs though the ranks have agreed: the one whose turn it is has yet to be computed here.
    return OnOtherDevice(plan) || (agreed && plan.waiting == plan.unfinished);
  });
}

Standstill Engine::WhatIsWaitedFor() const {
  Standstill standstill;
  standstill.holds = !MayGoOn();
  standstill.completed = watch_.progress();
  watch_.VisitRunning([&standstill](uint32_t channel, uint64_t sequence, const Operation& operation) {
    standstill.running.push_back({channel, sequence, operation.Signature(), operation.Title()});
  });
  const MutexLock lock(mutex_);
  standstill.begun = begun_;
  return standstill;
}

// A rank whose process uses the processor computes, and is only slow, whatever it waits for besides.
void Engine::LookForStandstill(Deadline::Clock::time_point now) {
  if (options_.stall_warning_s <= 0 || options_.topology.size == 1) return;
  Stillness& last = stillness_;
  Standstill here = WhatIsWaitedFor();
  const double processor_s = ProcessorTime();
  const double passed = std::chrono::duration<double>(now - last.looked).count();
  const bool idle = processor_s - last.processor_s <= timing::kIdleShare * std::max(passed, timing::kTick);
  last.looked = now;
  last.processor_s = processor_s;
  if (!here.holds || !idle || !(here == last.standstill)) {
    if (last.said) Send(control_, 0, Message::kStandstill, Standstill());
    last.said = false;
    last.since = now;
    last.standstill = std::move(here);
    return;
  }
  if (last.said || now - last.since < Deadline::Seconds(options_.stall_warning_s)) return;
  last.said = true;
  Send(control_, 0, Message::kStandstill, here);
}

// At rank 0.
void Engine::OnStandstill(int from, Standstill standstill) {
  switch (standstills_.Take(from, std::move(standstill), table_.UndecidedByRank())) {
    case StandstillRecord::Next::kNothing:
      return;
    case StandstillRecord::Next::kAskAll:
      return SendToAll(control_, Message::kStandstillQuery, true);
    case StandstillRecord::Next::kFail:
      return FailAll(standstills_.failure());
  }
}

void Engine::OnStandstillQuery(int, bool) {
  if (!stillness_.said) return;  // rank 0 has been told
  LookForStandstill(Deadline::Clock::now());
  if (stillness_.said) Send(control_, 0, Message::kStandstill, stillness_.standstill);
}

void Engine::TickNegotiation(Deadline::Clock::time_point now) {
  const Status overdue = table_.Overdue(now);
  if (!overdue.ok() && !failure_.failed()) FailAll(overdue);
  for (const std::string& text : table_.Stalled(now, options_.stall_warning_s)) options_.log.Warning(text);
}

// The operation that waits longest: its deadline, and the error that it will get. Behind a bucket that runs it is that
// one's deadline first: its end says whom the plan waits for.
std::optional<std::pair<Deadline, std::string>> Engine::OldestPending() const {
  std::optional<std::pair<Deadline, std::string>> oldest;
  const auto consider = [&oldest](const Pending& pending, Deadline deadline, const std::string& why) {
    if (!oldest || deadline.when() < oldest->first.when())
      oldest.emplace(deadline, pending.operation.Title() + " timed out: " + why);
  };
  const MutexLock lock(mutex_);
  for (const auto& [name, queue] : pending_)
    consider(queue.front(), queue.front().deadline, "rank 0 has not decided about it");
  for (const auto& [name, plan] : plans_) {
    const bool runs = plan->unfinished > plan->waiting;
    const std::string why = runs ? "a bucket of its plan has not ended on this rank"
                                 : "it waits for bucket " + std::to_string(plan->order().cursor()) +
                                       " of its plan, which this rank has not started";
    for (const Pending* run : plan->order().Waiting())
      consider(*run, runs ? Deadline::At(std::max(run->deadline.when(), plan->begun.when())) : run->deadline, why);
  }
  return oldest;
}

}  // namespace tfc
