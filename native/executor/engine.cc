// The half of the engine that callers see: operations, plans, shutdown. What the peers say is
// handled in engine_messages.cc.
#include "executor/engine.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/callers.h"
#include "base/pause.h"
#include "control/timing.h"
#include "executor/channels.h"
#include "executor/host_device.h"
#include "executor/messages.h"
#include "executor/plan.h"

namespace tfc {
namespace {

Status CheckSame(const PlanSpec& known, const PlanSpec& spec) {
  if (known.signature == spec.signature && known.num_buckets == spec.num_buckets) return Status::Ok();
  return Status(Code::kInvalidArgument, "there is another bucket plan named '" + spec.name + "' in this process");
}

uint64_t HashText(const std::string& text) {
  Operation operation;  // a barrier's signature is its name's
  operation.name = text;
  return operation.Signature();
}

}  // namespace

// The waiter of an operation on a caller's thread. Most of these are over before anybody could ask for them, so
// they come to the watch list, and read the clock, only when they have to wait for a peer.
class Engine::CallerWaiter final : public Waiter {
 public:
  CallerWaiter(Engine* engine, const Operation& operation)
      : engine_(*engine), operation_(operation), sequence_(engine->inline_channel_.sequence) {}

  bool watched() const { return watched_; }
  uint64_t sequence() const { return sequence_; }

  // As the first wait does. For an operation that has failed: the peers will ask for this rank's view of it.
  Status Watch() {
    watched_ = true;
    deadline_ = Deadline::After(operation_.timeout_s);
    TFC_RETURN_IF_ERROR(engine_.BeginWatched(operation_, kInlineChannel, sequence_));
    // A rank that has joined since it began does not know that this operation needs a contribution of zeros.
    return engine_.Is(kSomeJoined) ? engine_.joining_.Call(operation_, kInlineChannel, sequence_) : Status::Ok();
  }

  Status WaitFor(const Condition& condition, Deadline) override {
    if (engine_.options_.caller_spin_us > 0 && LookBriefly(condition)) return Status::Ok();
    if (!watched_) TFC_RETURN_IF_ERROR(Watch());
    return engine_.caller_waiter_->WaitFor(condition, deadline_);
  }

 private:
  static constexpr int kBriefLooks = 50;  // about a microsecond

  static bool LookBriefly(const Condition& condition) {
    for (int i = 0; i < kBriefLooks; ++i) {
      if (condition.Holds()) return true;
      Pause();
    }
    return false;
  }

  Engine& engine_;
  const Operation& operation_;
  const uint64_t sequence_;
  bool watched_ = false;
  Deadline deadline_ = Deadline::At({});
};

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      host_(std::make_unique<HostDevice>(this)),
      departures_(options_.topology.size, &failure_.events()),
      set_up_(options_.topology.size, &failure_),
      joining_(options_.topology.size, &watch_, &failure_, this),
      standstills_(options_.topology.size),
      table_(options_.topology.size, {kFirstPlanChannel, kMaxPlans}, {kFirstGpuPlanChannel, kMaxGpuPlans}),
      arbiter_(options_.topology.rank, options_.topology.size) {
  inline_channel_.index = kInlineChannel;
}

// An exception must neither leave a fiber nor end one rank's operation without the others hearing of it.
Status Engine::ExecuteSafely(const Topology& topology, const Operation& operation, const Resources& resources,
                             Deadline deadline, Channel* channel, const Prepared* prepared) {
  try {
    return prepared == nullptr ? Execute(topology, operation, resources, deadline, channel)
                               : ExecutePrepared(topology, *prepared, resources, deadline, channel);
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, operation.Title() + ": out of memory");
  } catch (const std::exception& exception) {
    return Status(Code::kInternal, operation.Title() + ": " + exception.what());
  }
}

Engine::~Engine() { Shutdown(timing::kFailedLinger); }

Status Engine::Start(PolledTransport transport, Arena* arena, std::function<void(int, UniqueFd)> add_connection) {
  Status failure;
  {
    // The monitor runs already, and a failure that it has seen ends the start.
    const MutexLock lock(mutex_);
    arena_ = arena;
    transport_ = std::move(transport);
    if (arena_ != nullptr) caller_waiter_ = arena_->MakeWaiter(Arena::Sleeper::kCaller, options_.caller_spin_us);
    add_connection_ = std::move(add_connection);
    runs_inline_ = options_.topology.size == 1 || UsesArenaOnly(options_.topology, Resources{nullptr, arena_, nullptr});
    scheduler_ = std::make_unique<Scheduler>(transport_, arena_, options_.progress_spin_us);
    started_ = true;
    failure = failure_.Get();
  }
  if (!failure.ok()) return failure;
  return options_.topology.size == 1 ? Status::Ok() : scheduler_->Start();
}

std::string Engine::Call(int rank) const {
  const auto index = static_cast<size_t>(rank);
  return index < options_.peers.size() ? options_.peers[index] : "rank " + std::to_string(rank);
}

void Engine::FillIn(Operation* operation) const {
  if (operation->timeout_s <= 0) operation->timeout_s = options_.op_timeout_s;
  operation->late_contributors = &joining_.joined();
}

Deadline Engine::Start(Operation* operation) const {
  FillIn(operation);
  return Deadline::After(operation->timeout_s);
}

Status Engine::Admit() const {
  if (failure_.failed()) return failure_.Get();
  if (Is(kClosing)) return Status(Code::kFailedPrecondition, "the communicator has been shut down");
  if (Is(kJoining))
    return Status(Code::kFailedPrecondition, "this rank has joined: it has no more data until all ranks have joined");
  return Status::Ok();
}

Status Engine::Run(Operation* operation) {
  TFC_RETURN_IF_ERROR(operation->Check(options_.topology.size));
  return runs_inline_ ? RunInline(operation) : RunOnProgress(operation);
}

Status Engine::RunInline(Operation* operation) {
  FillIn(operation);
  return RunOnCaller(*operation, nullptr);
}

std::unique_ptr<Prepared> Engine::Prepare(const Operation& operation) const {
  if (!runs_inline_ || !operation.Check(options_.topology.size).ok()) return nullptr;
  auto prepared = std::make_unique<Prepared>(operation, options_.topology.size);
  FillIn(&prepared->operation);
  return prepared;
}

Status Engine::RunPrepared(const Prepared& prepared) { return RunOnCaller(prepared.operation, &prepared); }

Status Engine::MayWait() const {
  if (!OnOwnThread()) return Status::Ok();
  return Status(Code::kFailedPrecondition, "a callback must not run a collective and wait for it: submit it by name");
}

// A shutdown takes the mutex after it has announced itself: it waits for this call, or is seen here. The deadline
// stands in the waiter.
Status Engine::RunOnCaller(const Operation& operation, const Prepared* prepared) {
  TFC_RETURN_IF_ERROR(MayWait());
  NoteCaller();
  const MutexLock lock(inline_mutex_);
  const bool usual = unusual_.load() == 0;
  if (!usual) TFC_RETURN_IF_ERROR(Admit());
  CallerWaiter waiter(this, operation);
  const Resources resources{nullptr, arena_, &waiter};
  const int64_t began_ns = timeline_.on() ? MonotonicNanoseconds() : 0;
  const Status status =
      usual ? ExecuteSafely(options_.topology, operation, resources, Deadline::Never(), &inline_channel_, prepared)
            : ExecuteAmongJoined(operation, resources, Deadline::Never(), &inline_channel_);
  if (began_ns != 0) timeline_.Add(OperationEvent(operation, kInlineChannel, waiter.sequence(), began_ns));
  if (status.ok()) {
    if (usual && Is(kSomeJoined)) joining_.Correct(operation, kInlineChannel, waiter.sequence());
    waiter.watched() ? watch_.End(kInlineChannel, true) : watch_.CompletedUnseen();
    return status;
  }
  const Status watched = waiter.watched() ? Status::Ok() : waiter.Watch();
  const Status settled = watched.ok() ? Settle(status, operation, kInlineChannel, waiter.sequence()) : watched;
  watch_.End(kInlineChannel, false);
  return settled;
}

Result<int> Engine::Join(double timeout_s) {
  TFC_RETURN_IF_ERROR(Admit());
  if (options_.topology.size == 1) return 0;
  if (OnOwnThread()) return Status(Code::kFailedPrecondition, "a callback must not join");
  {
    const MutexLock lock(mutex_);
    TFC_RETURN_IF_ERROR(Admit());
    unusual_ |= kJoining;
  }
  const Result<int> last = joining_.Join(timeout_s > 0 ? timeout_s : options_.op_timeout_s);
  const MutexLock lock(mutex_);
  unusual_ &= ~uint32_t{kJoining};
  return last;
}

// Until what waits and runs here must have ended by its own timeouts.
Deadline Engine::EndOfWhatIsBegun() const {
  double seconds = options_.op_timeout_s;
  watch_.VisitRunning(
      [&seconds](uint32_t, uint64_t, const Operation& operation) { seconds = std::max(seconds, operation.timeout_s); });
  const MutexLock lock(mutex_);
  for (const auto& [name, queue] : pending_)
    for (const Pending& pending : queue) seconds = std::max(seconds, pending.deadline.Left());
  for (const auto& [name, plan] : plans_)
    for (const Pending* run : plan->order().Waiting()) seconds = std::max(seconds, run->deadline.Left());
  return Deadline::After(seconds + timing::kRootGrace + timing::kDecision);
}

// What this rank has begun counts as its own. It ends by its own deadlines; if it does not, this ends the wait of all.
Status Engine::WaitUntilNothingRuns() {
  const Deadline deadline = EndOfWhatIsBegun();
  {
    const MutexLock callers(inline_mutex_);
  }
  const auto nothing_waits = [this] {
    const MutexLock lock(mutex_);
    const bool plans_wait = std::any_of(plans_.begin(), plans_.end(), [this](const auto& entry) {
      const Plan& plan = *entry.second;
      return plan.waiting > 0 || (OnOtherDevice(plan) && plan.unfinished > 0);
    });
    return failure_.failed() || (pending_.empty() && !plans_wait);
  };
  bool passed = failure_.events().WaitUntil(deadline, nothing_waits);
  if (passed) {
    // Markers behind what is on the channels now. They may outlive this call.
    const auto open = std::make_shared<std::atomic<int>>(0);
    for (const uint32_t channel : ChannelsInUse())
      *open += scheduler_->Submit(channel, [this, open](const Resources&, Channel*) {
        --*open;
        failure_.events().Notify();
      });
    passed = failure_.events().WaitUntil(deadline, [&open] { return *open == 0; });
  }
  return passed ? failure_.Get() : NotEnded("join timed out: " + WaitingIn());
}

std::vector<uint32_t> Engine::ChannelsInUse() const {
  std::vector<uint32_t> channels{kNegotiatedChannel, kDirectChannel};
  const MutexLock lock(mutex_);
  for (const auto& [name, plan] : plans_)
    if (plan->channel && IsPlanChannel(*plan->channel)) channels.push_back(*plan->channel);
  return channels;
}

// Something here goes on long after its timeout: this rank's own threads do not get on.
Status Engine::NotEnded(const std::string& what) {
  FailAll(Status(Code::kInternal,
                 what + " has not ended on rank " + std::to_string(options_.topology.rank) +
                     " though its timeout has passed: a callback blocks, or the rank is overloaded",
                 options_.topology.rank));
  return failure_.Get();
}

void Engine::RunInTurn(uint32_t channel, const Scheduler::Task& task) {
  if (channel != kInlineChannel) return static_cast<void>(scheduler_->Submit(channel, task));
  const MutexLock callers(inline_mutex_);
  task(Resources{nullptr, arena_, caller_waiter_.get()}, &inline_channel_);
}

// A failure has reached all ranks, and ends the join.
void Engine::RunHere(Operation* operation, const Resources& resources, Channel* channel) {
  const Deadline deadline = Start(operation);
  static_cast<void>(RunWatched(*operation, resources, deadline, channel));
}

// While ranks have joined. How many ranks contribute is certain only when the operation has ended: a rank that joins
// may be missing from one that the others have begun already. So all ranks divide an average by what is certain at the
// beginning, and correct the first one without a rank afterwards.
Status Engine::ExecuteAmongJoined(const Operation& operation, const Resources& resources, Deadline deadline,
                                  Channel* channel) {
  const uint64_t sequence = channel->sequence;
  TFC_RETURN_IF_ERROR(joining_.Call(operation, channel->index, sequence));
  Operation counted = operation;
  counted.contributors = joining_.joined().ContributorsOf(channel->index, sequence).before;
  const Status status = ExecuteSafely(options_.topology, counted, resources, deadline, channel);
  if (status.ok()) joining_.Correct(operation, channel->index, sequence);
  return status;
}

Status Engine::RunOnProgress(Operation* operation) {
  NoteCaller();
  const Deadline deadline = Start(operation);
  AllocateOutside(operation);
  return DoOnProgress(*operation, kDirectChannel, [&](const Resources& resources, Channel* channel) {
    return RunWatched(*operation, resources, deadline, channel);
  });
}

Status Engine::DoOnProgress(const Operation& title, uint32_t channel_index,
                            const std::function<Status(const Resources&, Channel*)>& task) {
  TFC_RETURN_IF_ERROR(MayWait());
  Status result;
  std::atomic<bool> ended{false};
  bool taken = false;
  {
    const MutexLock lock(mutex_);  // the rank that joins next finds this call on the channel
    TFC_RETURN_IF_ERROR(Admit());
    taken = scheduler_->Submit(channel_index, [&, this](const Resources& resources, Channel* channel) {
      result = task(resources, channel);
      ended = true;  // from here on the caller's stack may be gone
      failure_.events().Notify();
    });
  }
  if (!taken) return Status(Code::kFailedPrecondition, "the communicator has been shut down");
  const auto has_ended = [&ended] { return ended.load(); };
  if (!failure_.events().WaitUntil(Deadline::After(title.timeout_s + 2 * timing::kDecision), has_ended)) {
    static_cast<void>(NotEnded(title.Title()));
    // The task, which uses the caller's memory, is interrupted and ends as soon as the thread gets on.
    failure_.events().WaitUntil(Deadline::Never(), has_ended);
  }
  return result;
}

Status Engine::ProbeLink(Deadline deadline) {
  if (!probes_ || runs_inline_) return Status::Ok();
  Operation title;
  title.name = "link probe";
  title.timeout_s = std::min(deadline.Left(), options_.op_timeout_s);
  TFC_RETURN_IF_ERROR(DoOnProgress(title, kProbeChannel, [&](const Resources& resources, Channel* channel) {
    return ProbeWatched(title, resources, Deadline::After(title.timeout_s), channel);
  }));
  return Synchronise(deadline);
}

Status Engine::ProbeWatched(const Operation& title, const Resources& resources, Deadline deadline, Channel* channel) {
  const uint64_t sequence = channel->sequence;
  TFC_RETURN_IF_ERROR(BeginWatched(title, channel->index, sequence));
  const auto link = tfc::ProbeLink(options_.topology, resources, deadline, channel);
  if (link.ok()) {
    link_ = link.value();
    scheduler_->SetLink(link_);
  }
  const Status settled = link.ok() ? Status::Ok() : Settle(link.status(), title, channel->index, sequence);
  watch_.End(channel->index, link.ok());
  return settled;
}

// A rank that asks may now see that the operation runs. The failure, if there is one already or it cannot end well.
Status Engine::BeginWatched(const Operation& operation, uint32_t channel, uint64_t sequence) {
  if (failure_.failed()) return failure_.Get();
  bool view_owed = false;
  const Status begun = watch_.Begin(channel, sequence, operation, &view_owed);
  if (!begun.ok()) return FailWith(begun);
  KeepTicking();
  if (view_owed) Send(control_, 0, Message::kView, watch_.View(channel, sequence));
  return Status::Ok();
}

Status Engine::RunWatched(const Operation& operation, const Resources& resources, Deadline deadline, Channel* channel) {
  const uint64_t sequence = channel->sequence;
  TFC_RETURN_IF_ERROR(BeginWatched(operation, channel->index, sequence));
  const int64_t began_ns = timeline_.on() ? MonotonicNanoseconds() : 0;
  const bool usual = !Is(kSomeJoined);
  const Status status = usual ? ExecuteSafely(options_.topology, operation, resources, deadline, channel)
                              : ExecuteAmongJoined(operation, resources, deadline, channel);
  if (usual && Is(kSomeJoined) && status.ok()) joining_.Correct(operation, channel->index, sequence);
  if (began_ns != 0) timeline_.Add(OperationEvent(operation, channel->index, sequence, began_ns));
  if (status.ok()) {
    watch_.End(channel->index, true);
    return status;
  }
  const Status settled = Settle(status, operation, channel->index, sequence);
  watch_.End(channel->index, false);
  return settled;
}

// Turns what this rank saw into what all ranks will say. The arbiter, on the monitor thread, decides.
Status Engine::Settle(const Status& error, const Operation& operation, uint32_t channel, uint64_t sequence) {
  if (failure_.failed()) return failure_.Get();
  if (control_ == nullptr) return error;
  const bool differs = FailureArbiter::EventOf(error) == FailureArbiter::Event::kMismatch;
  const Status seen =
      differs ? Status(error.code(), error.message() + "; this rank: " + operation.Describe(), error.peer()) : error;
  Report(seen, channel, sequence);
  const Status decision = failure_.WaitFor(Deadline::After(timing::kDecision));
  if (!decision.ok()) return decision;
  FailAll(seen);
  return failure_.Get();
}

void Engine::Report(const Status& seen, uint32_t channel, uint64_t sequence) {
  const auto event = FailureArbiter::EventOf(seen);
  control_->Post([this, event, seen, place = Place{channel, sequence}] {
    monitor_.AssertHeld();
    Observe({event, seen, place});
  });
}

Status Engine::Submit(Operation operation, Done done) {
  TFC_RETURN_IF_ERROR(operation.Check(options_.topology.size));
  if (operation.name.empty())
    return Status(Code::kInvalidArgument, "an operation that is matched by name needs a name");
  TFC_RETURN_IF_ERROR(Admit());
  if (options_.topology.size == 1) {
    done(RunInline(&operation));
    return Status::Ok();
  }
  NoteCaller();
  if (timeline_.on()) operation.submitted_ns = MonotonicNanoseconds();
  const Deadline deadline = Start(&operation);
  AllocateOutside(&operation);
  const Request request = RequestFor(operation);
  Status left;
  {
    const MutexLock lock(mutex_);
    // Under the lock: a failure or a departure after this point finds the operation among the pending ones.
    TFC_RETURN_IF_ERROR(Admit());
    left = watch_.CheckNoneLeft(operation.Title());
    if (left.ok()) {
      pending_[request.name].push_back(Pending{std::move(operation), std::move(done), deadline});
      ++begun_;
    }
  }
  if (!left.ok()) return FailWith(left);
  Ask(request);
  return Status::Ok();
}

Request Engine::RequestFor(const Operation& operation) const {
  Request request;
  request.name = operation.name;
  request.signature = operation.Signature();
  request.view = operation.Describe();
  request.takes_zeros = TakesZeroContributions(operation);
  request.timeout_s = operation.timeout_s;
  return request;
}

Status Engine::CheckNoneLeft(const std::string& title) const {
  const Status left = watch_.CheckNoneLeft(title);
  return !left.ok() && failure_.failed() ? failure_.Get() : left;
}

void Engine::Ask(const Request& request) {
  Send(control_, 0, Message::kRequest, request);
  KeepTicking();
}

Result<std::shared_ptr<Plan>> Engine::AcquirePlan(const PlanSpec& spec) {
  if (spec.num_buckets == 0) return Status(Code::kInvalidArgument, "a bucket plan needs at least one bucket");
  const MutexLock lock(mutex_);
  auto& plan = plans_[spec.name];
  if (plan == nullptr) plan = std::make_shared<Plan>(spec);
  TFC_RETURN_IF_ERROR(CheckSame(plan->spec(), spec));
  return plan;
}

void Engine::ForgetPlan(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = plans_.find(name);
  if (found == plans_.end()) return;
  const std::shared_ptr<Plan> plan = found->second;
  plan->forgotten = true;
  DropIfForgotten(plan);
}

// The channel's counters stay as they are, and are the same on all ranks: each has done all runs. In
// the middle of a step the plan is needed for the rest: another one of its name would begin with the first bucket.
void Engine::DropIfForgotten(const std::shared_ptr<Plan>& plan) {
  if (!plan->forgotten || plan->unfinished > 0 || plan->order().cursor() != 0) return;
  plans_.erase(plan->spec().name);
  if (plan->asked && !failure_.failed()) Send(control_, 0, Message::kForget, plan->spec().name);
  plan->StartAnew();
}

void Engine::Complete(const std::shared_ptr<Plan>& plan) {
  const MutexLock lock(mutex_);
  --plan->unfinished;
  if (Is(kJoining)) failure_.events().Notify();
  DropIfForgotten(plan);
}

Status Engine::FillBucket(const Plan& plan, size_t bucket, Operation* operation) {
  const PlanSpec& spec = plan.spec();
  if (bucket >= spec.num_buckets)
    return Status(Code::kInvalidArgument,
                  "bucket " + std::to_string(bucket) + " of a plan of " + std::to_string(spec.num_buckets));
  operation->collective = Collective::kAllReduce;
  operation->op = spec.op;
  operation->prescale = spec.prescale;
  operation->postscale = spec.postscale;
  operation->timeout_s = spec.timeout_s;
  operation->name = spec.name + "/bucket " + std::to_string(bucket);
  return Status::Ok();
}

Status Engine::StartBucket(const std::shared_ptr<Plan>& given, size_t bucket, Operation operation, Done done) {
  TFC_RETURN_IF_ERROR(FillBucket(*given, bucket, &operation));
  if (timeline_.on()) operation.submitted_ns = MonotonicNanoseconds();
  TFC_RETURN_IF_ERROR(operation.Check(options_.topology.size));
  TFC_RETURN_IF_ERROR(Admit());
  if (options_.topology.size == 1) {
    done(RunInline(&operation));
    return Status::Ok();
  }
  const Deadline deadline = Start(&operation);
  return Enqueue(host_.get(), given, bucket, Pending{std::move(operation), std::move(done), deadline});
}

Status Engine::RunPlan(const std::shared_ptr<Plan>& given, std::vector<Operation> buckets) {
  if (OnOwnThread()) return Status(Code::kFailedPrecondition, "a callback must not run a plan");
  if (buckets.size() != given->spec().num_buckets)
    return Status(Code::kInvalidArgument, "the bucket plan '" + given->spec().name + "' has " +
                                              std::to_string(given->spec().num_buckets) + " buckets, not " +
                                              std::to_string(buckets.size()));
  std::vector<Status> ends(buckets.size());
  const auto open = std::make_shared<std::atomic<size_t>>(buckets.size());
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const auto end = [this, open, &status = ends[bucket]](const Status& ended) {
      status = ended;
      --*open;
      failure_.events().Notify();
    };
    const Status started = StartBucket(given, bucket, std::move(buckets[bucket]), end);
    if (!started.ok()) end(started);
  }
  // Each bucket has a deadline; until its end the caller's memory is in use.
  failure_.events().WaitUntil(Deadline::Never(), [&open] { return *open == 0; });
  const auto failed = std::find_if(ends.begin(), ends.end(), [](const Status& status) { return !status.ok(); });
  return failed == ends.end() ? Status::Ok() : *failed;
}

Status Engine::StartBucketOn(Device* device, const std::shared_ptr<Plan>& given, size_t bucket,
                             const Operation& operation, uint64_t ticket) {
  TFC_RETURN_IF_ERROR(Admit());
  Operation title;
  title.collective = operation.collective;
  title.name = operation.name;
  title.timeout_s = operation.timeout_s;
  const Deadline deadline = Start(&title);
  return Enqueue(device, given, bucket, Pending{std::move(title), nullptr, deadline, ticket});
}

Status Engine::Enqueue(Device* device, const std::shared_ptr<Plan>& given, size_t bucket, Pending run) {
  std::shared_ptr<Plan> plan;
  const PlanSpec& spec = given->spec();
  NoteCaller();
  bool ask = false;
  std::optional<uint32_t> agreed;
  Status left;
  {
    const MutexLock lock(mutex_);
    TFC_RETURN_IF_ERROR(Admit());
    if (device == device_ && device_closed_) return Status::Ok();
    // It may have been forgotten since it was acquired, and another one of its name may be in its place.
    plan = plans_.emplace(spec.name, given).first->second;
    TFC_RETURN_IF_ERROR(CheckSame(plan->spec(), spec));
    if (plan->device != nullptr && plan->device != device)
      return Status(Code::kInvalidArgument, "the bucket plan '" + spec.name +
                                                "' has buckets on GPUs and in the host's memory: all must lie in one");
    plan->device = device;
    // Once the ranks have agreed, the run itself finds out whether it needs a rank that has left.
    if (plan->channel.value_or(kNoPlanChannel) == kNoPlanChannel) left = watch_.CheckNoneLeft(run.operation.Title());
    if (left.ok()) {
      plan->Start(bucket, std::move(run));
      ++begun_;
      ask = !std::exchange(plan->asked, true);
      agreed = plan->channel;
    }
  }
  if (!left.ok()) return FailWith(left);
  if (ask) AskForPlan(spec, device == device_);
  if (agreed) device->Enqueue(plan, *agreed);
  KeepTicking();
  return Status::Ok();
}

void Engine::AskForPlan(const PlanSpec& spec, bool on_other_device) {
  Request request;
  request.name = spec.name;
  request.subject = Subject::kPlan;
  request.on_gpus = on_other_device;
  request.takes_zeros = !on_other_device && (spec.op == Op::kAverage || spec.op == Op::kSum);
  request.signature = HashText(WithoutLabels(spec.signature));
  request.view = spec.signature;
  request.timeout_s = spec.timeout_s > 0 ? spec.timeout_s : options_.op_timeout_s;
  Ask(request);
}

bool Engine::OnOtherDevice(const Plan& plan) const { return plan.device != nullptr && plan.device == device_; }

// Under the mutex: threads that start buckets at the same time must not change their order.
void Engine::TakeTurns(const std::shared_ptr<Plan>& plan, const std::function<void(const Pending& run)>& take) {
  const MutexLock lock(mutex_);
  while (const auto run = plan->Next()) take(*run);
}

void Engine::Watch(const Operation& operation, uint32_t channel, uint64_t sequence) {
  // An error has failed the engine, which ends the operation, too.
  if (BeginWatched(operation, channel, sequence).ok() && Is(kSomeJoined))
    static_cast<void>(joining_.Call(operation, channel, sequence));
}

// The device knows what it has not been given, and goes on with that in another way.
void Engine::CloseDevice() {
  monitor_.AssertHeld();
  table_.CloseGpus();
  const MutexLock lock(mutex_);
  device_closed_ = true;
  for (auto found = plans_.begin(); found != plans_.end();) {
    Plan& plan = *found->second;
    const bool on_other_device = OnOtherDevice(plan);
    if (on_other_device) {  // its owner keeps it, and may bring it back
      plan.order().TakeAll();
      plan.waiting = 0;
    }
    found = on_other_device ? plans_.erase(found) : std::next(found);
  }
  failure_.events().Notify();
}

// TensorFlow's allocators go deeper than a fiber's stack.
void Engine::AllocateOutside(Operation* operation) {
  if (!operation->allocate) return;
  operation->allocate = [this, allocate = std::move(operation->allocate)](const std::vector<int64_t>& rows) {
    std::byte* memory = nullptr;
    scheduler_->CallOutside([&] { memory = allocate(rows); });
    return memory;
  };
}

void Engine::Fail(const Status& status) {
  if (!failure_.Set(status)) return;
  unusual_ |= kFailed;
  host_->Fail(status);
  CancelPending(status);
  if (options_.on_failure) options_.on_failure();
  if (device_ != nullptr) device_->Fail(status);
}

// The thread that fails the engine may hold a lock or be on a fiber: the progress thread calls. Handed over with the
// mutex, so that a shutdown, which cancels too, does not stop the thread before.
void Engine::CancelPending(const Status& status) {
  const MutexLock lock(mutex_);
  std::vector<Done> cancelled = TakeEverythingPending();
  if (cancelled.empty()) return;
  scheduler_->Call([cancelled = std::move(cancelled), status] {
    for (const Done& done : cancelled) done(status);
  });
}

std::vector<Done> Engine::TakeEverythingPending() {
  std::vector<Done> all;
  for (auto& [name, queue] : pending_)
    for (Pending& pending : queue) all.push_back(std::move(pending.done));
  pending_.clear();
  for (auto& [name, plan] : plans_) {
    for (Pending& run : plan->order().TakeAll())
      if (run.done) all.push_back(std::move(run.done));
    plan->waiting = 0;
  }
  return all;
}

Status Engine::FailWith(const Status& why) {
  Fail(why);
  return failure_.Get();
}

void Engine::FailAll(const Status& status) {
  // Notify the peers before waking local waiters: a waiter may leave at once.
  if (control_ != nullptr) Send(control_, 0, Message::kAbort, status);
  Fail(status);
}

void Engine::Abort(const std::string& cause) {
  const int rank = options_.topology.rank;
  const Status there(Code::kAborted, "rank " + std::to_string(rank) + " stopped: " + cause, rank);
  if (failure_.failed()) return;
  if (control_ != nullptr) Send(control_, 0, Message::kAbort, there);
  Fail(Status(Code::kCancelled, "stopped on this rank: " + cause, rank));
}

void Engine::Shutdown(double timeout_s) {
  {
    const MutexLock lock(mutex_);
    if (shut_down_) return;
    shut_down_ = true;
    unusual_ |= kClosing;
  }
  const bool failed = failure_.failed();
  Fail(Status(Code::kCancelled, "the communicator was shut down on this rank"));
  CancelPending(failure_.Get());
  if (control_ == nullptr) return;
  if (scheduler_ != nullptr) scheduler_->Stop();
  {
    const MutexLock callers(inline_mutex_);
  }  // the last call has been interrupted
  Send(control_, 0, Message::kLeave, watch_.progress());
  const Deadline deadline = Deadline::After(failed ? std::min(timeout_s, timing::kFailedLinger) : timeout_s);
  // The control connections end with rank 0, so rank 0 stays a little for those who still tell each other why.
  if (is_root()) {
    for (const int rank : control_->Missing()) departures_.Close(rank);
    departures_.WaitForAll(deadline);
  }
  control_->Stop(is_root() ? Deadline::After(timing::kCause) : deadline);
}

bool Engine::OnOwnThread() const {
  return (control_ != nullptr && control_->IsMonitor()) || (scheduler_ != nullptr && scheduler_->IsProgress()) ||
         inline_mutex_.HeldByThisThread();
}

EngineCounters Engine::counters() const {
  const MutexLock lock(mutex_);
  EngineCounters counters;
  counters.completed = watch_.completed();
  counters.pending = watch_.active();
  for (const auto& [name, queue] : pending_) counters.pending += queue.size();
  for (const auto& [name, plan] : plans_) counters.pending += plan->waiting;
  return counters;
}

Status Engine::Synchronise(Deadline deadline, const Status& mine, Status* objection) {
  if (options_.topology.size == 1) return Status::Ok();
  set_up_.Close();
  Send(control_, 0, Message::kReady, mine);
  const auto go = set_up_.Wait(deadline);
  if (failure_.failed()) return failure_.Get();
  if (go) {
    probes_ = go->probe;
    if (objection != nullptr) *objection = go->objection;
    return Status::Ok();
  }
  if (!is_root()) return Status(Code::kDeadlineExceeded, "rank 0 did not say that all ranks are ready", 0);
  const std::vector<int> missing = set_up_.missing();
  return Status(Code::kDeadlineExceeded, RankList(missing) + " did not get ready", missing.front());
}

}  // namespace tfc
