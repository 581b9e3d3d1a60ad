// The engine of one communicator: direct calls, negotiated operations and bucket plans, and what
// happens when one of them fails or a peer goes.
#ifndef TFCOLLECTIVE_EXECUTOR_ENGINE_H_
#define TFCOLLECTIVE_EXECUTOR_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agreement/negotiation.h"
#include "agreement/standstill.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "communicator/execute.h"
#include "communicator/failure.h"
#include "communicator/operation.h"
#include "communicator/topology.h"
#include "control/control_connections.h"
#include "control/failure_arbiter.h"
#include "device/device.h"
#include "executor/bucket_order.h"
#include "executor/departures.h"
#include "executor/join_protocol.h"
#include "executor/messages.h"
#include "executor/scheduler.h"
#include "executor/set_up_barrier.h"
#include "executor/timeline.h"
#include "executor/watch.h"

namespace tfc {

// Called on the progress thread's own stack, without a lock; in a world of one on the caller's thread.
using Done = std::function<void(const Status&)>;

struct EngineOptions {
  Topology topology;
  std::vector<std::string> peers;  // "rank 2 (10.0.0.7:3412)": how messages call each rank
  double op_timeout_s = 300;
  double stall_warning_s = 10;
  int caller_spin_us = 0;
  int progress_spin_us = 0;
  bool probe_link = true;  // at rank 0: whether the ranks measure the transport between them
  Log log;
  std::function<void()> on_failure;  // once, at the first failure; must not block
};

// A plan as the ranks agree on it; see PlanOptions in the C header.
struct PlanSpec {
  std::string name;
  std::string signature;
  size_t num_buckets = 0;
  Op op = Op::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
  double timeout_s = 0.0;
};

// An operation that waits for its turn.
struct Pending {
  Operation operation;  // of a bucket on another device: without memory
  Done done;            // in the host's memory
  Deadline deadline;
  uint64_t ticket = 0;  // what another device calls it
};

struct EngineCounters {
  uint64_t completed = 0;
  uint64_t pending = 0;
};

class Engine final : public ControlHandler, private JoinProtocol::Host {
 public:
  explicit Engine(EngineOptions options);
  ~Engine() override;  // shuts down unless Shutdown was called

  // Before the control connections are started: where to send. Not called in a world of one.
  void Attach(ControlConnections* control) {
    control_ = control;
    joining_.Attach(control);
  }
  // Before any thread runs: the device for memory that is not the host's. It must outlive Shutdown.
  void Attach(Device* device) { device_ = device; }
  // Connects the other parts, which must outlive the engine, and starts the progress thread. `arena`
  // may be nullptr; `add_connection` takes data connections of peers.
  Status Start(PolledTransport transport, Arena* arena, std::function<void(int, UniqueFd)> add_connection);

  Status Run(Operation* operation);  // blocks; fills in the timeout
  // For an operation that is run again and again: checks it once. Nothing if direct calls do not run on the caller's
  // thread here; then, and for the errors, there is Run.
  std::unique_ptr<Prepared> Prepare(const Operation& operation) const;
  Status RunPrepared(const Prepared& prepared);
  Status Submit(Operation operation, Done done);  // matched by name
  Result<std::shared_ptr<Plan>> AcquirePlan(const PlanSpec& spec);
  Status StartBucket(const std::shared_ptr<Plan>& given, size_t bucket, Operation operation, Done done);
  // All buckets of a step; returns when they are done.
  Status RunPlan(const std::shared_ptr<Plan>& given, std::vector<Operation> buckets);
  // Fills in what the plan says of the bucket's operation.
  static Status FillBucket(const Plan& plan, size_t bucket, Operation* operation);
  // Starts a bucket on the attached device, which calls it `ticket`. Unless this returns an error, the engine fails or
  // the device is closed, TakeTurns gives it once, perhaps before this returns. Not in a world of one.
  Status StartBucketOn(Device* device, const std::shared_ptr<Plan>& given, size_t bucket, const Operation& operation,
                       uint64_t ticket);

  // For devices. Gives `take` the plan's runs whose turn has come, with the mutex held, so that all buckets keep their
  // order: of the engine it calls Ask only.
  void TakeTurns(const std::shared_ptr<Plan>& plan, const std::function<void(const Pending& run)>& take);
  // A run that a device has taken is complete.
  void Complete(const std::shared_ptr<Plan>& plan);
  // The operation is the next one to be complete on this channel of the other device: watches it as those that run
  // here, for ranks that have left or joined. It must live until EndWatch.
  void Watch(const Operation& operation, uint32_t channel, uint64_t sequence);
  void EndWatch(uint32_t channel, bool completed) { watch_.End(channel, completed); }
  // This rank has seen this error in that operation: the arbiter, on the monitor thread, decides what all ranks say.
  void Report(const Status& seen, uint32_t channel, uint64_t sequence);
  // This process does not need the plan of that name any longer: gives its channel back once its runs are done
  // and all ranks have said so. A plan that is started again nevertheless is agreed on again.
  void ForgetPlan(const std::string& name);

  // This rank has no more data: takes part with zeros in what the others all-reduce until they have
  // joined too. Gives the rank that joined last. DEADLINE_EXCEEDED when for `timeout_s` (0: the
  // default) nothing was asked of this rank and not all have joined.
  Result<int> Join(double timeout_s);

  // Ends everything here with CANCELLED and at the peers with ABORTED.
  void Abort(const std::string& cause);
  // Ends everything here with `status`. For failures that the peers see for themselves.
  void Fail(const Status& status) override;
  // The same; returns why all has ended, which an earlier failure may say. Not with a lock of the caller's.
  Status FailWith(const Status& why);
  // Ends everything here and at the peers with `status`. Never blocks.
  void FailEverywhere(const Status& status) override { FailAll(status); }
  // Lets rank 0 decide about an operation: Device::Decide. Not in a world of one.
  void Ask(const Request& request);
  // On the monitor thread: nothing runs on the other device. No rank is waited for there, and TakeTurns gives nothing.
  void CloseDevice();
  // The reason why no operation may begin, or OK.
  Status Admit() const;
  // PEER_LOST if a rank has left: for operations that no rank has begun yet. After a failure, for which ranks leave,
  // too, that failure.
  Status CheckNoneLeft(const std::string& title) const;
  // Not on a thread of its own: see OnOwnThread.
  void Shutdown(double timeout_s);
  // True if the caller is in a callback: on one of the engine's threads, or in an operation that runs on its own.
  bool OnOwnThread() const;
  // FAILED_PRECONDITION there: who waits there keeps the engine from going on, and itself waiting.
  Status MayWait() const;

  Timeline& timeline() { return timeline_; }
  const FirstFailure& failure() const { return failure_; }
  const Topology& topology() const { return options_.topology; }
  int progress_spin_us() const { return options_.progress_spin_us; }
  EngineCounters counters() const;

  // Waits until every rank has come to it. Whatever a rank does after that comes after the others' good end.
  // `mine`: what speaks, on this rank, against going on as planned; `objection` gets that of one rank that has
  // something to say, the same on all ranks, with its name. Not before the control connections run.
  Status Synchronise(Deadline deadline, const Status& mine = Status::Ok(), Status* objection = nullptr);

  // After Synchronise, on all ranks: measures the transport, unless rank 0 does not want that or none is used. Ends as
  // Synchronise does.
  Status ProbeLink(Deadline deadline);
  // The measured link; the same on all ranks. Not before ProbeLink has returned.
  const Link& link() const { return link_; }

  // ControlHandler, on the monitor thread.
  void OnMessage(int from, uint8_t type, const std::string& payload) override;
  void OnClosed(int rank, const Status& why) override;
  void OnDataConnection(int peer, UniqueFd fd) override;
  std::optional<Deadline::Clock::time_point> OnTick(Deadline::Clock::time_point now) override;

 private:
  class CallerWaiter;
  class HostDevice;

  // What keeps an operation from running as usual: one look at it is what every operation pays for all of that.
  enum : uint32_t { kFailed = 1, kClosing = 2, kJoining = 4, kSomeJoined = 8 };
  bool Is(uint32_t what) const { return (unusual_.load() & what) != 0; }

  bool is_root() const { return options_.topology.rank == 0; }
  void FillIn(Operation* operation) const;  // with what the engine knows: the default timeout, who contributes
  // The operation's deadline from now on; completes it.
  Deadline Start(Operation* operation) const;
  std::string Call(int rank) const;  // the name of a rank in messages

  // Running operations (any thread).
  Status RunInline(Operation* operation);
  Status RunOnCaller(const Operation& operation, const Prepared* prepared);
  Status RunOnProgress(Operation* operation);
  Status DoOnProgress(const Operation& title, uint32_t channel_index,
                      const std::function<Status(const Resources&, Channel*)>& task);
  Status NotEnded(const std::string& what);
  Status ProbeWatched(const Operation& title, const Resources& resources, Deadline deadline, Channel* channel);
  Status BeginWatched(const Operation& operation, uint32_t channel, uint64_t sequence);
  Status RunWatched(const Operation& operation, const Resources& resources, Deadline deadline, Channel* channel);
  Status Settle(const Status& error, const Operation& operation, uint32_t channel, uint64_t sequence);
  static Status ExecuteSafely(const Topology& topology, const Operation& operation, const Resources& resources,
                              Deadline deadline, Channel* channel, const Prepared* prepared = nullptr);
  Status ExecuteAmongJoined(const Operation& operation, const Resources& resources, Deadline deadline,
                            Channel* channel);
  void AllocateOutside(Operation* operation);
  Status Enqueue(Device* device, const std::shared_ptr<Plan>& given, size_t bucket, Pending run);
  void AskForPlan(const PlanSpec& spec, bool on_other_device);
  bool OnOtherDevice(const Plan& plan) const;  // not in the host's memory
  void DropIfForgotten(const std::shared_ptr<Plan>& plan) TFC_REQUIRES(mutex_);
  Request RequestFor(const Operation& operation) const;

  // Messages.
  Status Take(int from, Message type, const std::string& payload) TFC_REQUIRES(monitor_);
  template <typename Body>
  Status Give(void (Engine::*handle)(int, Body), int from, const std::string& payload);
  void OnRequest(int from, Request request) TFC_REQUIRES(monitor_);
  void OnDecision(int from, const Decision& decision);
  void OnForget(int from, const std::string& plan) TFC_REQUIRES(monitor_);
  void OnFreed(int from, const Freed& freed);
  void OnAbort(int from, const Status& status) TFC_REQUIRES(monitor_);
  void OnFailed(int from, const Status& status) TFC_REQUIRES(monitor_);
  void OnTrouble(int from, FailureArbiter::Observation trouble) TFC_REQUIRES(monitor_);
  void OnViewQuery(int from, const Place& place);
  void OnView(int from, FailureArbiter::View view) TFC_REQUIRES(monitor_);
  void OnLeave(int from, const Progress& progress);
  void OnLeft(int from, const Left& left) TFC_REQUIRES(monitor_);
  void OnReady(int from, const Status& objection);
  void OnGo(int from, const Go& go);
  void OnJoin(int from, const Progress& progress) TFC_REQUIRES(monitor_);
  void OnStandstill(int from, Standstill standstill) TFC_REQUIRES(monitor_);
  void OnStandstillQuery(int from, bool asked) TFC_REQUIRES(monitor_);
  Status OnJoining(int from, Message type, const std::string& payload);
  void Protocol(const std::string& wrong, int from);

  // JoinProtocol::Host.
  Status WaitUntilNothingRuns() override;
  void RunInTurn(uint32_t channel, const Scheduler::Task& task) override;
  void RunHere(Operation* operation, const Resources& resources, Channel* channel) override;
  Deadline EndOfWhatIsBegun() const;
  std::vector<uint32_t> ChannelsInUse() const;

  void FailAll(const Status& status);  // here and, through rank 0, at all ranks
  void Announce(const Decision& decision) TFC_REQUIRES(monitor_);
  void StartPlan(const Decision& decision);
  void Observe(const FailureArbiter::Observation& seen) TFC_REQUIRES(monitor_);
  void Act(const FailureArbiter::Action& action) TFC_REQUIRES(monitor_);
  std::string WaitingIn() const;  // the title of an operation that waits here, or nothing
  Status BlockedBy(int rank, const Progress& progress);
  void LookAtWaiting(Deadline::Clock::time_point now) TFC_REQUIRES(monitor_);
  Standstill WhatIsWaitedFor() const;
  bool MayGoOn() const;
  void LookForStandstill(Deadline::Clock::time_point now) TFC_REQUIRES(monitor_);
  void KeepTicking();
  void TickNegotiation(Deadline::Clock::time_point now) TFC_REQUIRES(monitor_);
  std::vector<Done> TakeEverythingPending() TFC_REQUIRES(mutex_);
  void CancelPending(const Status& status);
  std::optional<std::pair<Deadline, std::string>> OldestPending() const;

  const EngineOptions options_;
  const std::unique_ptr<Device> host_;     // the host's memory
  Device* device_ = nullptr;               // other memory; set before any thread runs
  ControlConnections* control_ = nullptr;  // set before any thread runs
  // Set under the mutex, before there are callers; the monitor, which runs already, takes the mutex to look.
  Arena* arena_ = nullptr;
  PolledTransport transport_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Waiter> caller_waiter_;
  bool runs_inline_ = false;  // direct calls run on the caller's thread
  Link link_;                 // set before there are callers
  FirstFailure failure_;
  WatchList watch_;  // the operations that run now, by channel
  Departures departures_;
  SetUpBarrier set_up_;
  Timeline timeline_;
  JoinProtocol joining_;

  OwnedMutex inline_mutex_;  // one call on a caller's thread at a time
  Channel inline_channel_;

  std::atomic<uint32_t> unusual_{0};
  std::atomic<bool> ticking_{false};  // the monitor looks at deadlines now and then
  bool probes_ = false;               // rank 0 wants the link measured; set before there are callers

  mutable Mutex mutex_;
  bool started_ TFC_GUARDED_BY(mutex_) = false;
  bool shut_down_ TFC_GUARDED_BY(mutex_) = false;
  std::function<void(int, UniqueFd)> add_connection_ TFC_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<Pending>> pending_ TFC_GUARDED_BY(mutex_);  // submitted, not decided yet
  std::map<std::string, std::shared_ptr<Plan>> plans_ TFC_GUARDED_BY(mutex_);  // and what they hold
  bool device_closed_ TFC_GUARDED_BY(mutex_) = false;
  uint64_t begun_ TFC_GUARDED_BY(mutex_) = 0;  // operations by name and buckets

  // The time for which this rank has done nothing but wait, as far as one look after the other shows.
  struct Stillness {
    Standstill standstill;
    Deadline::Clock::time_point since;
    Deadline::Clock::time_point looked;
    double processor_s = 0;  // of this process until then
    bool said = false;       // rank 0 knows
  };

  ThreadRole monitor_;
  Stillness stillness_ TFC_GUARDED_BY(monitor_);
  StandstillRecord standstills_ TFC_GUARDED_BY(monitor_);  // rank 0
  NegotiationTable table_ TFC_GUARDED_BY(monitor_);        // rank 0
  FailureArbiter arbiter_ TFC_GUARDED_BY(monitor_);
  Deadline::Clock::time_point last_busy_ TFC_GUARDED_BY(monitor_){};
  Deadline::Clock::time_point next_look_ TFC_GUARDED_BY(monitor_){};  // at what waits
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_ENGINE_H_
