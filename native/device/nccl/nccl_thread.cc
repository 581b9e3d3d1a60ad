// The half that runs on the NCCL thread: set-up, launching, watching, abort.
#include <algorithm>
#include <iterator>
#include <utility>

#include "control/timing.h"
#include "device/nccl/device_communicator.h"
#include "device/nccl/device_task.h"
#include "device/nccl/host_staging.h"

namespace tfc {
namespace {

using std::chrono::microseconds;

// Neither the driver nor NCCL gives anything to sleep on, so the NCCL thread looks now and then while something is
// under way: often at first or while a thread waits, rarely later. With nothing under way it sleeps.
constexpr microseconds kShortestLook{20};
constexpr microseconds kLongestLook{2000};
constexpr microseconds kLookForWaiters{100};
constexpr microseconds kTick{200000};  // for deadlines of what waits for peers
constexpr double kCloseSeconds = 5.0;

}  // namespace

void DeviceCommunicator::RunNcclThread() {
  nccl_role_.AssertHeld();
  nccl_thread_id_.store(std::this_thread::get_id());
  Deadline deadline = Deadline::Never();
  {
    const Gpu::Current current(*gpu_);
    while (true) {
      const uint64_t seen = signals_.load(std::memory_order_acquire);
      {
        const MutexLock lock(mutex_);
        deadline = stop_deadline_;
        if (stop_) break;
      }
      Rest(Step(), seen);
    }
    CloseQueues(deadline);
  }
  {
    const MutexLock lock(mutex_);
    nccl_thread_ended_ = true;
  }
  Signal();
}

// Does what there is to do now; true if something was given to NCCL or has come from it to the stream.
bool DeviceCommunicator::Step() {
  if (engine_->failure().failed()) {
    AbortQueues();
    return false;
  }
  const Status broken = Broken();
  if (!broken.ok()) BreakQueues(broken);
  bool launched = false;
  for (Queue& queue : queues_) {
    const Stage before = queue.stage;
    if (broken.ok()) SetUp(&queue);
    launched = launched || queue.stage != before;
    while (LaunchNext(&queue)) launched = true;
    Poll(&queue);
  }
  host_staging_->Poll();
  CheckDeadlines();
  return launched;
}

// Whether something of it is with NCCL or on the GPU, to be looked after often.
bool DeviceCommunicator::UnderWay(const Queue& queue) {
  return queue.stage == Stage::kConnecting || queue.launch != nullptr || !queue.in_flight.empty();
}

// Until something may have changed since `seen`, or the deadline.
void DeviceCommunicator::SleepBeyond(uint64_t seen, Deadline deadline) {
  changed_.WaitUntil(deadline, [&] { return signals_.load(std::memory_order_acquire) != seen; });
}

void DeviceCommunicator::Rest(bool busy, uint64_t seen) {
  const auto now = Deadline::Clock::now();
  if (busy) {
    active_ = now;
    interval_ = kShortestLook;
  }
  if (now < active_ + microseconds(options_.spin_us)) return;
  const auto is_asking = [](const Queue& queue) { return queue.stage == Stage::kAsking; };
  const auto is_open = [](const OpenTasks& open) { return !open.tasks.empty(); };
  const bool flying = std::any_of(queues_.begin(), queues_.end(), UnderWay) || host_staging_->busy();
  bool open = std::any_of(queues_.begin(), queues_.end(), is_asking) || !host_staging_->empty();
  {
    const MutexLock lock(mutex_);
    open = open || std::any_of(open_.begin(), open_.end(), is_open);
    interval_ = flying ? std::min(interval_ * 2, waiters_ > 0 ? kLookForWaiters : kLongestLook) : kTick;
  }
  SleepBeyond(seen, flying || open ? Deadline::At(Deadline::Clock::now() + interval_) : Deadline::Never());
}

// ---- set-up ----

// As far as it goes now.
void DeviceCommunicator::SetUp(Queue* queue) {
  if (queue->stage == Stage::kUnused && Wanted(*queue)) AskForSetup(queue);
  Status status;
  if (queue->stage == Stage::kAsking) status = ConnectWhenAgreed(queue);
  if (status.ok() && queue->stage == Stage::kConnecting) status = FinishConnecting(queue);
  if (!status.ok()) GiveUp(status);
}

Status DeviceCommunicator::Broken() const {
  const MutexLock lock(mutex_);
  return broken_;
}

bool DeviceCommunicator::Wanted(const Queue& queue) const {
  const MutexLock lock(mutex_);
  return inputs_[queue.number].wanted;
}

void DeviceCommunicator::AskForSetup(Queue* queue) {
  // CheckDepartures hears of a rank that leaves after this. Nothing else asks about a bucket whose plan the ranks have
  // agreed on.
  const Status left = engine_->CheckNoneLeft(SetupOf(queue->number));
  if (!left.ok()) return GiveUp(engine_->FailWith(left));
  SetupEntry mine;
  mine.nccl_version = nccl_->version;
  mine.nccl_path = nccl_->path;
  mine.gpu = gpu_->Title();
  mine.uuid = gpu_->info().uuid;
  if (rank_ == 0) {
    ncclUniqueId id{};
    const Status made = NcclStatus(*nccl_, nccl_->ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
    if (!made.ok()) return GiveUp(made);
    mine.id.assign(id.internal, sizeof(id.internal));
  }
  queue->stage = Stage::kAsking;
  Request request;
  {
    const MutexLock lock(mutex_);
    request = SetupRequest(queue->number, inputs_[queue->number].setup_timeout_s);
  }
  request.blob = Encode(mine);
  Ask(std::move(request));
}

Status DeviceCommunicator::ConnectWhenAgreed(Queue* queue) {
  std::string id;
  {
    const MutexLock lock(mutex_);
    const Input& input = inputs_[queue->number];
    if (!input.agreed) return Status::Ok();
    id = input.id;
  }
  return Connect(queue, id);
}

Status DeviceCommunicator::Connect(Queue* queue, const std::string& id) {
  ncclUniqueId unique{};
  if (id.size() != sizeof(unique.internal)) return Status(Code::kProtocol, "rank 0 has sent no unique id of NCCL", 0);
  std::copy(id.begin(), id.end(), unique.internal);
  auto stream = gpu_->CreateUrgentStream();
  if (!stream.ok()) return stream.status();
  queue->nccl = NcclStream{nccl_.get(), nullptr, stream.Take(), rank_, size_};
  auto packed = PackedBuffer::Make(gpu_);
  if (!packed.ok()) return packed.status();
  queue->packed = packed.Take();
  ncclConfig_t config;
  const int blocks = MaxBlocks(gpu_->info(), kQueues, devices().max_ctas);
  if (blocks > 0) config.max_ctas = blocks;
  const ncclResult_t begun = nccl_->ncclCommInitRankConfig(&queue->nccl.comm, size_, unique, rank_, &config);
  TFC_RETURN_IF_ERROR(NcclStatus(*nccl_, begun, queue->nccl.comm, "ncclCommInitRankConfig"));
  queue->stage = Stage::kConnecting;
  queue->connected_by = Deadline::After(options_.op_timeout_s);
  return Status::Ok();
}

Status DeviceCommunicator::FinishConnecting(Queue* queue) {
  const std::string what = "ncclCommInitRankConfig";
  const auto settled = Settled(queue->nccl, what);
  if (!settled && queue->connected_by.Passed())
    return Status(Code::kDeadlineExceeded, what + ": NCCL does not come to an end");
  if (!settled || !settled->ok()) return settled.value_or(Status::Ok());
  queue->stage = Stage::kUsable;
  return Status::Ok();
}

// NCCL works on in the background; until it is done nothing else may be asked of the communicator. Nothing: it is not.
std::optional<Status> DeviceCommunicator::Settled(const NcclStream& stream, const std::string& what) const {
  ncclResult_t state = kNcclSuccess;
  const ncclResult_t asked = nccl_->ncclCommGetAsyncError(stream.comm, &state);
  if (asked != kNcclSuccess) state = asked;
  if (state == kNcclInProgress) return std::nullopt;
  return NcclStatus(*nccl_, state, stream.comm, what);
}

// At the end only: no other queue's work is held up any more.
Status DeviceCommunicator::Settle(const NcclStream& stream, Deadline deadline, const std::string& what) {
  microseconds look = kShortestLook;
  while (true) {
    const uint64_t seen = signals_.load(std::memory_order_acquire);  // a failure signals, and ends this wait early
    if (const auto settled = Settled(stream, what)) return *settled;
    if (engine_->failure().failed()) return engine_->failure().Get();
    if (deadline.Passed()) return Status(Code::kDeadlineExceeded, what + ": NCCL does not come to an end");
    SleepBeyond(seen, Deadline::At(Deadline::Clock::now() + look));
    look = std::min(look * 2, kLongestLook);
  }
}

// All ranks come to the same end: GPUs cannot be used, the communicator lives on. No queue has been used before either.
void DeviceCommunicator::BreakQueues(const Status& status) {
  for (Queue& queue : queues_) queue.stage = Stage::kUnused;
  std::vector<Done> waiting;
  std::vector<TaskPtr> staged;
  {
    const MutexLock lock(mutex_);
    if (std::all_of(open_.begin(), open_.end(), [](const OpenTasks& open) { return open.tasks.empty(); })) return;
    for (Input& input : inputs_) input.unagreed.clear();  // no decision finds what goes through the host
    for (const OpenTasks& open : open_)
      for (const auto& [ticket, task] : open.tasks)
        if (task->through_host && status.code() == Code::kUnimplemented) staged.push_back(task);
  }
  // Begun there before it is forgotten here: a caller that waits finds it in one place or the other.
  for (const TaskPtr& task : staged) host_staging_->Start(task, status);
  {
    const MutexLock lock(mutex_);
    for (const TaskPtr& task : staged) open_[KindOf(task->ticket)].tasks.erase(task->ticket);
    LoseOpen(status, &waiting);
  }
  Signal();
  for (const Done& done : waiting) done(status);
}

// ---- work ----

// Brings the queue's next operation to the GPU, or as far as NCCL has come with it. True if it has arrived there.
bool DeviceCommunicator::LaunchNext(Queue* queue) {
  if (queue->stage != Stage::kUsable) return false;
  const Status begun = BeginLaunch(queue);
  if (begun.ok() && queue->launch == nullptr) return false;
  const auto arrived = begun.ok() ? ContinueLaunch(queue) : Result<bool>(begun);
  if (!arrived.ok()) GiveUp(arrived.status());
  if (!arrived.ok() || !arrived.value()) return false;
  queue->launch.reset();
  const TaskPtr task = std::exchange(queue->launching, nullptr);
  Done done;
  {
    const MutexLock lock(mutex_);
    queue->in_flight.push_back(task);
    done = task->End(Status::Ok());
  }
  Signal();
  if (done) done(Status::Ok());
  return true;
}

// Takes the next task, if none is on its way.
Status DeviceCommunicator::BeginLaunch(Queue* queue) {
  if (queue->launch != nullptr) return Status::Ok();
  {
    const MutexLock lock(mutex_);
    std::deque<TaskPtr>& to_launch = inputs_[queue->number].to_launch;
    if (to_launch.empty()) return Status::Ok();
    queue->launching = to_launch.front();
    to_launch.pop_front();
  }
  queue->launching->sequence = queue->sequence++;
  active_ = Deadline::Clock::now();
  interval_ = kShortestLook;
  const Task& task = *queue->launching;
  TFC_RETURN_IF_ERROR(gpu_->Check(gpu_->api().cuStreamWaitEvent(queue->nccl.stream, task.before, 0),
                                  task.operation.Title() + ": cuStreamWaitEvent"));
  queue->launch =
      std::make_unique<StreamLaunch>(queue->nccl, task.operation, task.rows, gpu_.get(), queue->packed.get());
  return queue->launch->Begin();
}

// True when the stream holds all of the operation.
Result<bool> DeviceCommunicator::ContinueLaunch(Queue* queue) {
  const Task& task = *queue->launching;
  for (bool more = true; more;) {
    const auto settled = Settled(queue->nccl, task.operation.Title());
    if (!settled) return false;
    TFC_RETURN_IF_ERROR(*settled);
    const auto next = queue->launch->Continue();
    if (!next.ok()) return next.status();
    more = next.value();
  }
  TFC_RETURN_IF_ERROR(gpu_->Check(gpu_->api().cuEventRecord(task.after, queue->nccl.stream),
                                  task.operation.Title() + ": cuEventRecord"));
  return true;
}

// Lets the engine watch what is complete next in a plan's queue. Of the other queues rank 0 knows which ranks have come
// to what.
void DeviceCommunicator::Watch(Queue* queue) {
  const TaskPtr& next = queue->in_flight.empty() ? queue->launching : queue->in_flight.front();
  if (queue->number < kBucket || next == nullptr || next == queue->watched) return;
  queue->watched = next;
  engine_->Watch(next->operation, next->channel, next->sequence);
}

void DeviceCommunicator::EndWatch(Queue* queue, bool completed) {
  if (queue->watched != nullptr) engine_->EndWatch(queue->watched->channel, completed);
  queue->watched.reset();
}

void DeviceCommunicator::Poll(Queue* queue) {
  bool completed = false;
  for (Watch(queue); !queue->in_flight.empty(); Watch(queue)) {
    const TaskPtr task = queue->in_flight.front();
    const CUresult state = gpu_->api().cuEventQuery(task->after);
    if (state == kCudaNotReady) break;
    if (state != kCudaSuccess) return GiveUp(gpu_->Check(state, task->operation.Title()));
    {
      const MutexLock lock(mutex_);
      if (!task->agreed) break;  // done here, but do the others do the same?
      queue->in_flight.pop_front();
      open_[KindOf(task->ticket)].tasks.erase(task->ticket);
    }
    EndWatch(queue, true);
    if (task->plan != nullptr) engine_->Complete(task->plan);
    completed = true;
  }
  if (completed) Signal();
  if (queue->in_flight.empty()) return;
  ncclResult_t state = kNcclSuccess;
  const ncclResult_t asked = nccl_->ncclCommGetAsyncError(queue->nccl.comm, &state);
  const Status status = NcclStatus(*nccl_, asked == kNcclSuccess ? state : asked, queue->nccl.comm,
                                   queue->in_flight.front()->operation.Title());
  if (!status.ok()) GiveUp(status);
}

// ---- failure ----

// A peer's death shows here as an error of NCCL or CUDA; the peers' own account of it is better.
void DeviceCommunicator::GiveUp(const Status& status) {
  if (engine_->failure().failed()) return;
  if (status.code() == Code::kPeerLost || status.code() == Code::kDevice) {
    if (!engine_->failure().WaitFor(Deadline::After(timing::kCause)).ok()) return;
  }
  const int peer = status.peer() == kNoPeer ? rank_ : status.peer();
  engine_->FailEverywhere(Status(status.code(),
                                 "rank " + std::to_string(rank_) + ", " + gpu_->Title() + ": " + status.message(), peer,
                                 status.sys_errno()));
}

void DeviceCommunicator::CheckDeadlines() {
  const auto now = Deadline::Clock::now();
  std::vector<std::string> stalled;
  Status overdue;
  {
    const MutexLock lock(mutex_);
    for (const OpenTasks& open : open_) {
      for (const auto& [ticket, task] : open.tasks) {
        if (now < task->deadline.when()) {
          WarnOfStall(task.get(), now, &stalled);
        } else if (overdue.ok()) {
          overdue = Overdue(*task, now);
        }
      }
    }
  }
  for (const std::string& text : stalled) options_.log.Warning(text);
  ReportLate(now);
  if (!overdue.ok()) engine_->FailEverywhere(overdue);
}

// Ranks come to what is next in a plan's queue without a message: which of them have not, rank 0 finds out.
void DeviceCommunicator::ReportLate(Deadline::Clock::time_point now) {
  for (const Queue& queue : queues_) {
    if (queue.watched == nullptr || now < queue.watched->deadline.when()) continue;
    Task& task = *queue.watched;
    if (task.reported) continue;
    task.reported = now;
    engine_->Report(Late(task), task.channel, task.sequence);
  }
}

// Of a task that has taken too long. Rank 0 knows, or finds out, which ranks have not come to it; if it does not say
// so, it is the culprit.
Status DeviceCommunicator::Overdue(const Task& task, Deadline::Clock::time_point now) const {
  if (task.awaits_turn) return Status::Ok();  // the engine knows for what
  const Status late = Late(task);
  if (task.agreed && task.channel == kNoPlanChannel)
    return Status(late.code(), late.message() + ": all ranks have come to it, but it is not complete");
  const bool unseen = task.channel != kNoPlanChannel && !task.reported;
  if (unseen && WatchedOn(task.channel) != nullptr) return Status::Ok();  // it waits behind that, or is reported now
  if (now < task.reported.value_or(task.deadline.when()) + Deadline::Seconds(timing::kRootGrace)) return Status::Ok();
  if (unseen) return Status(late.code(), late.message() + ": NCCL has not brought it to the GPU");
  return Status(late.code(), late.message() + "; and rank 0 does not answer", 0);
}

// What is next to be complete on the channel of a plan, or nullptr.
DeviceCommunicator::TaskPtr DeviceCommunicator::WatchedOn(uint32_t channel) const {
  return queues_[kBucket + channel - kFirstGpuPlanChannel].watched;
}

Status DeviceCommunicator::Late(const Task& task) const {
  return Status(Code::kDeadlineExceeded,
                WhereOf(task) + " timed out after " + std::to_string(task.operation.timeout_s) + " s");
}

// What the ranks have not agreed on, and what the engine watches, the engine warns of.
void DeviceCommunicator::WarnOfStall(Task* task, Deadline::Clock::time_point now,
                                     std::vector<std::string>* stalled) const {
  if (rank_ != 0 || options_.stall_warning_s <= 0 || task->warned || !task->agreed) return;
  if (task->channel != kNoPlanChannel) return;
  if (now < task->began + Deadline::Seconds(options_.stall_warning_s)) return;
  task->warned = true;
  stalled->push_back(WhereOf(*task) + " has waited for " + std::to_string(options_.stall_warning_s) + " s");
}

std::string DeviceCommunicator::WhereOf(const Task& task) const {
  return task.operation.Title() + " on " + gpu_->Title() + " of rank " + std::to_string(rank_);
}

// Ends what the GPU does for us: kernels of NCCL that wait for a peer end here and nowhere else.
void DeviceCommunicator::AbortQueues() {
  Status failure = engine_->failure().Get();
  if (failure.ok()) failure = Status(Code::kCancelled, "the communicator was shut down on this rank");
  std::vector<Done> waiting;
  for (Queue& queue : queues_) {
    EndWatch(&queue, false);
    queue.launch.reset();  // what it has made of NCCL's goes before the communicator
    queue.launching.reset();
    if (queue.nccl.comm != nullptr) nccl_->ncclCommAbort(std::exchange(queue.nccl.comm, nullptr));
    Finish(&queue);
    queue.in_flight.clear();
    queue.stage = Stage::kUnused;
  }
  {
    const MutexLock lock(mutex_);
    LoseOpen(failure, &waiting);
    for (Input& input : inputs_) input.wanted = false;
  }
  if (!waiting.empty()) Signal();
  for (const Done& done : waiting) done(failure);
  host_staging_->Abort(failure);
}

void DeviceCommunicator::LoseOpen(const Status& status, std::vector<Done>* waiting) {
  for (OpenTasks& open : open_) {
    if (!open.tasks.empty() && open.lost.ok()) {
      open.lost_from = open.tasks.begin()->first;
      open.lost = status;
    }
    for (const auto& [ticket, task] : open.tasks)
      if (Done done = task->End(status)) waiting->push_back(std::move(done));
    open.tasks.clear();
  }
  for (Input& input : inputs_) {
    input.unagreed.clear();
    input.to_launch.clear();
  }
}

void DeviceCommunicator::Finish(Queue* queue) {
  queue->packed.reset();
  if (queue->nccl.stream != nullptr) gpu_->api().cuStreamDestroy(std::exchange(queue->nccl.stream, nullptr));
}

// What the GPU has been given is still brought to its end: the peers need this rank for it.
void DeviceCommunicator::FinishFlights(Deadline deadline) {
  while (!engine_->failure().failed() && !deadline.Passed()) {
    const uint64_t seen = signals_.load(std::memory_order_acquire);
    bool flying = false;
    for (Queue& queue : queues_) {
      if (queue.stage == Stage::kConnecting) SetUp(&queue);
      while (LaunchNext(&queue)) {
      }
      Poll(&queue);
      flying = flying || UnderWay(queue);
    }
    host_staging_->Poll();
    if (!flying && host_staging_->empty()) return;
    SleepBeyond(seen, Deadline::At(Deadline::Clock::now() + kLongestLook));
  }
}

void DeviceCommunicator::CloseQueues(Deadline deadline) {
  for (const Queue& queue : queues_)  // the others would set NCCL up without this rank
    if (queue.stage == Stage::kAsking)
      GiveUp(Status(Code::kPeerLost, "it left during " + SetupOf(queue.number), rank_));
  FinishFlights(deadline);
  const Deadline closed_by = deadline.Earlier(Deadline::After(kCloseSeconds));
  bool complete = true;
  for (Queue& queue : queues_) {
    if (queue.nccl.comm == nullptr || engine_->failure().failed()) continue;
    complete = complete && !UnderWay(queue);
    if (UnderWay(queue)) continue;
    const std::string what = "ncclCommFinalize";
    Status closed = NcclStatus(*nccl_, nccl_->ncclCommFinalize(queue.nccl.comm), queue.nccl.comm, what);
    if (closed.ok()) closed = Settle(queue.nccl, closed_by, what);
    if (closed.ok()) nccl_->ncclCommDestroy(std::exchange(queue.nccl.comm, nullptr));
  }
  if (!complete && !engine_->failure().failed())
    engine_->FailEverywhere(
        Status(Code::kPeerLost, "rank " + std::to_string(rank_) + " left before its work on GPUs was complete", rank_));
  AbortQueues();
}

}  // namespace tfc
