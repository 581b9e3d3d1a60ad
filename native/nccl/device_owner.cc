// The half that runs on the owner's thread: set-up, launching, watching, abort.
#include <algorithm>
#include <iterator>
#include <utility>

#include "nccl/device_communicator.h"
#include "nccl/device_task.h"
#include "nccl/host_detour.h"

namespace tfc {
namespace {

using std::chrono::microseconds;

// Neither the driver nor NCCL gives anything to sleep on, so the owner looks now and then while something is under
// way: often at first or when somebody waits, rarely later. With nothing under way it sleeps.
constexpr microseconds kShortestLook{20};
constexpr microseconds kLongestLook{2000};
constexpr microseconds kLookForWaiters{100};
constexpr microseconds kTick{200000};  // for deadlines of what waits for peers
constexpr double kCauseSeconds = 0.3;  // what the peers say explains what NCCL or CUDA says
constexpr double kRootSeconds = 3.0;   // in which rank 0 answers who is missing
constexpr double kCloseSeconds = 5.0;

}  // namespace

void DeviceCommunicator::Own() {
  owner_id_.store(std::this_thread::get_id());
  const Gpu::Current current(*gpu_);
  while (true) {
    const uint64_t seen = signals_.load(std::memory_order_acquire);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) break;
    }
    Rest(Step(), seen);
  }
  CloseLanes();
}

// Does what there is to do now; true if something was launched.
bool DeviceCommunicator::Step() {
  if (engine_->failure().failed()) {
    AbortLanes();
    return false;
  }
  bool launched = false;
  for (Lane& lane : lanes_) {
    bool fresh = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      fresh = lane.wanted && !lane.ready && lane.broken.ok();
    }
    if (fresh) SetUp(&lane);
    while (LaunchNext(&lane)) launched = true;
    Poll(&lane);
  }
  detour_->Poll();
  CheckDeadlines();
  return launched;
}

void DeviceCommunicator::Rest(bool busy, uint64_t seen) {
  const auto now = Deadline::Clock::now();
  if (busy) {
    active_ = now;
    interval_ = kShortestLook;
  }
  if (now < active_ + microseconds(options_.spin_us)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto in_flight = [](const Lane& lane) { return !lane.in_flight.empty(); };
  const auto is_open = [](const Lane& lane) { return !lane.open.empty(); };
  const bool flying = std::any_of(lanes_.begin(), lanes_.end(), in_flight) || detour_->busy();
  const bool open = std::any_of(lanes_.begin(), lanes_.end(), is_open) || !detour_->empty();
  const auto changed = [&] { return signals_.load(std::memory_order_relaxed) != seen; };
  if (!open) return changed_.wait(lock, changed);
  interval_ = flying ? std::min(interval_ * 2, waiters_ > 0 ? kLookForWaiters : kLongestLook) : kTick;
  changed_.wait_for(lock, interval_, changed);
}

// ---- set-up ----

void DeviceCommunicator::SetUp(Lane* lane) {
  const Deadline deadline = Deadline::After(options_.op_timeout_s);
  auto entries = ExchangeSetup(lane, deadline);
  if (!entries.ok()) return GiveUp(entries.status());
  const Status judged = JudgeSetup(entries.value(), engine_->topology(), devices_.share_gpus);
  if (!judged.ok()) return BreakLane(lane, judged);
  const Status connected = Connect(lane, entries.value()[0].id, deadline);
  if (!connected.ok()) return GiveUp(connected);
  std::lock_guard<std::mutex> lock(mutex_);
  lane->ready = true;
}

Result<std::vector<SetupEntry>> DeviceCommunicator::ExchangeSetup(Lane* lane, Deadline deadline) {
  SetupEntry mine;
  mine.nccl_version = nccl_->version;
  mine.nccl_path = nccl_->path;
  mine.gpu = gpu_->Title();
  mine.uuid = gpu_->info().uuid;
  if (rank_ == 0) {
    ncclUniqueId id{};
    mine.status = NcclStatus(*nccl_, nccl_->ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
    mine.id.assign(id.internal, sizeof(id.internal));
  }
  Announce(RoundEntry{lane->setup_key, 0, lane->setup_key, Encode(mine)});
  const std::string late = "the " + lane->setup_key + " on GPUs timed out";
  Status waited = WaitUntil(deadline, late, [&] { return lane->setup.has_value() || stop_; });
  if (waited.code() == Code::kDeadlineExceeded) {
    ReportOverdue(lane->setup_key, waited);
    const Status cause = engine_->failure().WaitFor(Deadline::After(kRootSeconds));
    return cause.ok() ? waited : cause;
  }
  if (!waited.ok()) return waited;
  if (!lane->setup) return Status(Code::kPeerLost, "it left during the " + lane->setup_key, rank_);
  std::vector<SetupEntry> entries(lane->setup->size());
  for (size_t rank = 0; rank < entries.size(); ++rank)
    TFC_RETURN_IF_ERROR(Decode((*lane->setup)[rank], &entries[rank]));
  return entries;
}

Status DeviceCommunicator::Connect(Lane* lane, const std::string& id, Deadline deadline) {
  ncclUniqueId unique{};
  if (id.size() != sizeof(unique.internal)) return Status(Code::kProtocol, "rank 0 has sent no unique id of NCCL", 0);
  std::copy(id.begin(), id.end(), unique.internal);
  auto stream = gpu_->CreateUrgentStream();
  if (!stream.ok()) return stream.status();
  lane->channel = NcclChannel{nccl_.get(), nullptr, stream.Take(), rank_, size_};
  lane->packed = std::make_unique<PackedBuffer>(gpu_);
  ncclConfig_t config;
  if (devices_.max_ctas > 0) config.max_ctas = devices_.max_ctas;
  const ncclResult_t begun = nccl_->ncclCommInitRankConfig(&lane->channel.comm, size_, unique, rank_, &config);
  return Settle(lane->channel, begun, deadline, "ncclCommInitRankConfig");
}

// NCCL works on in the background; until it is done nothing else may be asked of the communicator.
Status DeviceCommunicator::Settle(const NcclChannel& channel, ncclResult_t result, Deadline deadline,
                                  const std::string& what) {
  microseconds look = kShortestLook;
  while (result == kNcclInProgress) {
    if (engine_->failure().failed()) return engine_->failure().Get();
    if (deadline.Passed()) return Status(Code::kDeadlineExceeded, what + ": NCCL does not come to an end");
    std::unique_lock<std::mutex> lock(mutex_);
    // A failure signals, and ends this wait early.
    changed_.wait_for(lock, look);
    lock.unlock();
    look = std::min(look * 2, kLongestLook);
    const ncclResult_t asked = nccl_->ncclCommGetAsyncError(channel.comm, &result);
    if (asked != kNcclSuccess) result = asked;
  }
  return NcclStatus(*nccl_, result, channel.comm, what);
}

// All ranks have come to the same end: the lane cannot be used, the communicator lives on.
void DeviceCommunicator::BreakLane(Lane* lane, const Status& status) {
  std::vector<Done> waiting;
  std::vector<TaskPtr> detoured;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lane->broken = status;
    for (auto one = lane->open.begin(); one != lane->open.end();) {
      const bool detour = one->second->through_host && status.code() == Code::kUnimplemented;
      if (detour) detoured.push_back(one->second);
      one = detour ? lane->open.erase(one) : std::next(one);
    }
    LoseOpen(lane, status, &waiting);
  }
  Signal();
  for (const TaskPtr& task : detoured) detour_->Start(task, status);
  for (const Done& done : waiting) done(status);
}

// ---- work ----

bool DeviceCommunicator::LaunchNext(Lane* lane) {
  TaskPtr task;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!lane->ready || lane->to_launch.empty()) return false;
    task = lane->to_launch.front();
    lane->to_launch.pop_front();
  }
  const Status status = LaunchTask(lane, task.get());
  if (!status.ok()) {
    GiveUp(status);
    return false;
  }
  Done done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lane->in_flight.push_back(task);
    done = task->End(Status::Ok());
  }
  Signal();
  if (done) done(Status::Ok());
  return true;
}

Status DeviceCommunicator::LaunchTask(Lane* lane, Task* task) {
  const NcclChannel& channel = lane->channel;
  const std::string title = task->operation.Title();
  TFC_RETURN_IF_ERROR(
      gpu_->Check(gpu_->api().cuStreamWaitEvent(channel.stream, task->before, 0), title + ": cuStreamWaitEvent"));
  TFC_RETURN_IF_ERROR(
      Launch(channel, task->operation, task->rows, gpu_.get(), lane->packed.get(), [this] { return Drain(); }));
  ncclResult_t state = kNcclSuccess;
  const ncclResult_t asked = nccl_->ncclCommGetAsyncError(channel.comm, &state);
  TFC_RETURN_IF_ERROR(Settle(channel, asked == kNcclSuccess ? state : asked, task->deadline, title));
  return gpu_->Check(gpu_->api().cuEventRecord(task->after, channel.stream), title + ": cuEventRecord");
}

void DeviceCommunicator::Poll(Lane* lane) {
  bool completed = false;
  while (!lane->in_flight.empty()) {
    const TaskPtr task = lane->in_flight.front();
    const CUresult state = gpu_->api().cuEventQuery(task->after);
    if (state == kCudaNotReady) break;
    if (state != kCudaSuccess) return GiveUp(gpu_->Check(state, task->operation.Title()));
    std::lock_guard<std::mutex> lock(mutex_);
    if (!task->agreed) break;  // done here, but do the others do the same?
    lane->in_flight.pop_front();
    lane->open.erase(task->ticket);
    completed = true;
  }
  if (completed) Signal();
  if (lane->in_flight.empty()) return;
  ncclResult_t state = kNcclSuccess;
  const ncclResult_t asked = nccl_->ncclCommGetAsyncError(lane->channel.comm, &state);
  const Status status = NcclStatus(*nccl_, asked == kNcclSuccess ? state : asked, lane->channel.comm,
                                   lane->in_flight.front()->operation.Title());
  if (!status.ok()) GiveUp(status);
}

Status DeviceCommunicator::Drain() {
  while (true) {
    if (engine_->failure().failed()) return engine_->failure().Get();
    bool flying = false;
    for (const Lane& lane : lanes_) {
      for (const TaskPtr& task : lane.in_flight) {
        const CUresult state = gpu_->api().cuEventQuery(task->after);
        if (state != kCudaSuccess && state != kCudaNotReady) return gpu_->Check(state, task->operation.Title());
        flying = flying || state == kCudaNotReady;
      }
    }
    if (!flying) return Status::Ok();
    CheckDeadlines();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kLongestLook);
    if (stop_ && stop_deadline_.Passed()) return Status(Code::kCancelled, "the communicator was shut down", rank_);
  }
}

// ---- failure ----

// A peer's death shows here as an error of NCCL or CUDA; the peers' own account of it is better.
void DeviceCommunicator::GiveUp(const Status& status) {
  if (engine_->failure().failed()) return;
  if (status.code() == Code::kPeerLost || status.code() == Code::kDevice) {
    if (!engine_->failure().WaitFor(Deadline::After(kCauseSeconds)).ok()) return;
  }
  const int peer = status.peer() == kNoPeer ? rank_ : status.peer();
  engine_->FailEverywhere(Status(status.code(),
                                 "rank " + std::to_string(rank_) + ", " + gpu_->Title() + ": " + status.message(), peer,
                                 status.sys_errno()));
}

void DeviceCommunicator::ReportOverdue(const std::string& key, const Status& status) {
  if (rank_ == 0) {
    OnOverdue(key, status);
  } else {
    engine_->SendNote(EncodeOverdue(key, status));
  }
}

void DeviceCommunicator::CheckDeadlines() {
  const auto now = Deadline::Clock::now();
  std::vector<std::pair<std::string, Status>> overdue;
  std::vector<std::string> stalled;
  Status unanswered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Lane& lane : lanes_) {
      for (const auto& [ticket, task] : lane.open) {
        const std::string what = task->operation.Title() + " on " + gpu_->Title() + " of rank " + std::to_string(rank_);
        if (root_left_ && !task->agreed && now >= std::max(*root_left_, task->began) + Deadline::Seconds(kRootSeconds))
          unanswered = RootLeft();
        if (now >= task->deadline.when()) {
          const Status late(Code::kDeadlineExceeded,
                            what + " timed out after " + std::to_string(task->operation.timeout_s) + " s");
          if (!std::exchange(task->overdue, true)) overdue.emplace_back(task->key, late);
          if (now >= task->deadline.when() + Deadline::Seconds(kRootSeconds))
            unanswered = Status(late.code(), late.message() + "; and rank 0 does not answer", 0);
        } else if (rank_ == 0 && options_.stall_warning_s > 0 && !task->warned &&
                   now >= task->began + Deadline::Seconds(options_.stall_warning_s)) {
          task->warned = true;
          const std::vector<int> missing = table_.Missing(task->key);
          stalled.push_back(what + " has waited for " + std::to_string(options_.stall_warning_s) + " s" +
                            (missing.empty() ? "" : ": " + RankList(missing) + " did not come to it"));
        }
      }
    }
  }
  for (const std::string& text : stalled) options_.log.Warning(text);
  for (const auto& [key, status] : overdue) ReportOverdue(key, status);
  if (!unanswered.ok()) engine_->FailEverywhere(unanswered);
}

// Ends what the GPU does for us: kernels of NCCL that wait for a peer end here and nowhere else.
void DeviceCommunicator::AbortLanes() {
  Status failure = engine_->failure().Get();
  if (failure.ok()) failure = Status(Code::kCancelled, "the communicator was shut down on this rank");
  std::vector<Done> waiting;
  for (Lane& lane : lanes_) {
    if (lane.channel.comm != nullptr) nccl_->ncclCommAbort(std::exchange(lane.channel.comm, nullptr));
    Finish(&lane);
    std::lock_guard<std::mutex> lock(mutex_);
    LoseOpen(&lane, failure, &waiting);
    lane.ready = false;
    lane.wanted = false;
  }
  if (!waiting.empty()) Signal();
  for (const Done& done : waiting) done(failure);
  detour_->Abort(failure);
}

void DeviceCommunicator::LoseOpen(Lane* lane, const Status& status, std::vector<Done>* waiting) {
  if (!lane->open.empty() && lane->lost.ok()) {
    lane->lost_from = lane->open.begin()->first;
    lane->lost = status;
  }
  for (const auto& [ticket, task] : lane->open)
    if (Done done = task->End(status)) waiting->push_back(std::move(done));
  lane->open.clear();
  lane->unagreed.clear();
  lane->to_launch.clear();
  lane->in_flight.clear();
}

void DeviceCommunicator::Finish(Lane* lane) {
  lane->packed.reset();
  if (lane->channel.stream != nullptr) gpu_->api().cuStreamDestroy(std::exchange(lane->channel.stream, nullptr));
}

// What the GPU has been given is still brought to its end: the peers need this rank for it.
void DeviceCommunicator::FinishFlights() {
  while (!engine_->failure().failed() && !stop_deadline_.Passed()) {
    bool flying = false;
    for (Lane& lane : lanes_) {
      while (LaunchNext(&lane)) {
      }
      Poll(&lane);
      flying = flying || !lane.in_flight.empty();
    }
    detour_->Poll();
    if (!flying && detour_->empty()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kLongestLook);
  }
}

void DeviceCommunicator::CloseLanes() {
  FinishFlights();
  SayGoodBye();
  const Deadline deadline = Deadline::After(std::min(stop_deadline_.Left(), kCloseSeconds));
  bool complete = true;
  for (Lane& lane : lanes_) {
    if (lane.channel.comm == nullptr || engine_->failure().failed()) continue;
    complete = complete && lane.in_flight.empty();
    if (!lane.in_flight.empty()) continue;
    const Status closed =
        Settle(lane.channel, nccl_->ncclCommFinalize(lane.channel.comm), deadline, "ncclCommFinalize");
    if (closed.ok()) nccl_->ncclCommDestroy(std::exchange(lane.channel.comm, nullptr));
  }
  if (!complete && !engine_->failure().failed())
    engine_->FailEverywhere(
        Status(Code::kPeerLost, "rank " + std::to_string(rank_) + " left before its work on GPUs was complete", rank_));
  AbortLanes();
}

}  // namespace tfc
