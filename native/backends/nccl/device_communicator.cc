// The half that callers and peers see; what the NCCL thread does is in nccl_thread.cc.
#include "backends/nccl/device_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/nccl/device_task.h"
#include "backends/nccl/host_staging.h"
#include "base/thread.h"

namespace tfc {
namespace {

// The NCCL thread ends what has taken too long; who waits for it does not give up before.
constexpr double kThreadGraceSeconds = 10.0;
// In which the NCCL thread ends, after the deadline of a shutdown, unless it is stuck.
constexpr double kEndSeconds = 5.0;

bool IsRagged(const Operation& operation) {
  return operation.collective == Collective::kAllGather || operation.collective == Collective::kAllToAll;
}

// What the other ranks have to know to size their results: rows for each rank, or rows for all.
std::string RowsBlob(const Operation& operation, int size) {
  std::vector<int64_t> rows;
  if (operation.collective == Collective::kAllGather) rows.push_back(operation.rows());
  if (operation.collective == Collective::kAllToAll) {
    rows = operation.splits;
    if (rows.empty()) rows.assign(static_cast<size_t>(size), operation.rows() / size);
  }
  return std::string(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(int64_t));
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(Engine* engine, DeviceCommunicatorOptions options)
    : engine_(engine), options_(std::move(options)), rank_(engine->topology().rank), size_(engine->topology().size) {
  for (size_t number = 0; number < kQueues; ++number) queues_[number].number = number;
  host_staging_ = std::make_unique<HostStagingBackend>(engine_, options_.log, [this] { Signal(); });
}

DeviceCommunicator::~DeviceCommunicator() { Shutdown(0); }

Status DeviceCommunicator::Configure(DeviceOptions options) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (used_) return Status(Code::kFailedPrecondition, "GPUs are in use already: configure them before the first use");
  devices_ = std::move(options);
  return Status::Ok();
}

Status DeviceCommunicator::Admit() const {
  if (engine_->failure().failed()) return engine_->failure().Get();
  std::lock_guard<std::mutex> lock(mutex_);
  return leaving_ ? HasLeft() : Status::Ok();
}

Status DeviceCommunicator::MayWait() const {
  if (!OnOwnThread()) return engine_->MayWait();
  return Status(Code::kFailedPrecondition, "a callback must not wait for an operation on GPUs");
}

// With the mutex. Both may have come since the call was admitted: `broken_` on all ranks, and a shutdown, after which
// no thread launches anything or calls back.
Status DeviceCommunicator::StillUsable() const { return leaving_ ? HasLeft() : broken_; }

Status DeviceCommunicator::HasLeft() {
  return Status(Code::kFailedPrecondition, "the communicator has been shut down");
}

void DeviceCommunicator::Signal() {
  {
    std::lock_guard<std::mutex> lock(mutex_);  // no thread is between looking and sleeping
    signals_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

Status DeviceCommunicator::WaitUntil(Deadline deadline, const std::string& what,
                                     const std::function<bool()>& predicate) {
  using Clock = Deadline::Clock;
  const auto spin_until = Clock::now() + std::chrono::microseconds(options_.spin_us);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!predicate()) {
    if (engine_->failure().failed()) return engine_->failure().Get();
    const uint64_t seen = signals_.load(std::memory_order_acquire);
    if (options_.spin_us > 0 && Clock::now() < spin_until) {
      lock.unlock();
      while (signals_.load(std::memory_order_acquire) == seen && Clock::now() < spin_until) {
      }
      lock.lock();
      continue;
    }
    if (deadline.Passed()) return Status(Code::kDeadlineExceeded, what);
    changed_.wait_until(lock, deadline.when(), [&] { return signals_.load(std::memory_order_relaxed) != seen; });
  }
  return Status::Ok();
}

Status DeviceCommunicator::LoadDriver() {
  if (cuda_ != nullptr) return Status::Ok();
  auto cuda = LoadCuda(devices_);
  if (!cuda.ok()) return cuda.status();
  std::lock_guard<std::mutex> lock(mutex_);
  cuda_ = cuda.Take();
  return Status::Ok();
}

Status DeviceCommunicator::OpenGpu(int device) {
  if (gpu_ != nullptr) {
    if (device == gpu_->info().ordinal) return Status::Ok();
    return Status(Code::kInvalidArgument, "it is on GPU " + std::to_string(device) + ", but rank " +
                                              std::to_string(rank_) + " works on " + gpu_->Title());
  }
  auto gpu = Gpu::Open(cuda_, device);
  if (!gpu.ok()) return gpu.status();
  std::lock_guard<std::mutex> lock(mutex_);
  gpu_ = gpu.Take();
  return Status::Ok();
}

Status DeviceCommunicator::FindNccl() {
  if (nccl_ != nullptr) return Status::Ok();
  auto nccl = LoadNccl(devices_);
  if (!nccl.ok()) return nccl.status();
  std::lock_guard<std::mutex> lock(mutex_);
  nccl_ = nccl.Take();
  return Status::Ok();
}

// The first piece says where; the others must be there too.
Result<int> DeviceCommunicator::DeviceOf(const Operation& operation, const DeviceCall& call) const {
  int device = call.device;
  const auto look = [&](const void* memory, size_t bytes, const char* what) -> Status {
    if (bytes == 0 || memory == nullptr) return Status::Ok();
    auto found = GpuOfPointer(*cuda_, memory);
    if (!found.ok()) return found.status().WithContext(operation.Title() + ": " + what);
    if (device < 0) device = found.value();
    if (found.value() == device) return Status::Ok();
    return Status(Code::kInvalidArgument, operation.Title() + ": " + what + " is on GPU " +
                                              std::to_string(found.value()) + ", not on GPU " + std::to_string(device));
  };
  for (const ConstSpan& piece : operation.input) TFC_RETURN_IF_ERROR(look(piece.data, piece.size, "an input"));
  for (const MutableSpan& piece : operation.output) TFC_RETURN_IF_ERROR(look(piece.data, piece.size, "an output"));
  if (device >= 0) return device;
  return gpu_ == nullptr ? 0 : gpu_->info().ordinal;
}

Status DeviceCommunicator::Open(const Operation& operation, const DeviceCall& call, Kind kind) {
  const Gate::Passage opening(&open_gate_, Deadline::After(options_.op_timeout_s));
  if (!opening.passed()) return AnotherOpens();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.ok()) return broken_;
    used_ = true;
  }
  const Status driver = LoadDriver();
  if (!driver.ok()) return Unable(driver, kind);
  const auto device = DeviceOf(operation, call);
  if (!device.ok()) return Misplaced(device.status());
  const Status found = FindNccl();
  if (!found.ok()) return Unable(found, kind);
  const bool first = gpu_ == nullptr;
  const Status opened = OpenGpu(device.value());
  if (!opened.ok()) return first ? Unable(opened, kind) : Misplaced(opened.WithContext(operation.Title()));
  return StartNcclThread();
}

// The other ranks have launched the operation, or wait for this one: nothing but the end gets them out of it.
Status DeviceCommunicator::Misplaced(const Status& why) {
  if (size_ == 1) return why;
  const Status status(why.code(), "rank " + std::to_string(rank_) + ": " + why.message(), rank_, why.sys_errno());
  engine_->FailEverywhere(status);
  return status;
}

Status DeviceCommunicator::StartNcclThread() {
  if (engine_->failure().failed()) return engine_->failure().Get();
  Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);  // Shutdown finds it here, or it is not started
    if (nccl_thread_.joinable()) return Status::Ok();
    if (leaving_) return HasLeft();
    auto thread = StartThread("tfc-nccl", [this] { RunNcclThread(); });
    status = thread.status();
    if (thread.ok()) nccl_thread_ = thread.Take();
  }
  if (!status.ok()) engine_->FailEverywhere(status);
  return status;
}

Status DeviceCommunicator::AnotherOpens() {
  return Status(Code::kDeadlineExceeded, "another call has not come back from opening the GPU: the CUDA driver hangs");
}

// The other ranks would wait for this one. They hear of it once.
Status DeviceCommunicator::Unable(const Status& why, Kind kind) {
  Request request = SetupRequest(kind, options_.op_timeout_s);
  request.objection = Status(why.code(),
                             "rank " + std::to_string(rank_) + " cannot use GPUs: " + why.message() +
                                 " (hosts with GPUs and hosts without cannot mix in one collective)",
                             rank_, why.sys_errno());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.ok()) return broken_;
    broken_ = request.objection;
  }
  const Status objection = request.objection;
  Ask(std::move(request));
  return objection;
}

Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::MakeTask(const Operation& operation, const DeviceCall& call) {
  const Gpu::Current current(*gpu_);
  auto task = std::make_shared<Task>(gpu_);
  for (CUevent* event : {&task->before, &task->after}) {
    auto taken = gpu_->TakeEvent();
    if (!taken.ok()) return taken.status();
    *event = taken.Take();
  }
  TFC_RETURN_IF_ERROR(
      gpu_->Check(gpu_->api().cuEventRecord(task->before, call.stream), operation.Title() + ": cuEventRecord"));
  task->began = Deadline::Clock::now();
  task->deadline = Deadline::After(operation.timeout_s, task->began);
  task->launched = call.launched;
  task->through_host = call.through_host;
  return task;
}

// Takes the operation's memory over where it succeeds.
Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::Begin(Operation* operation, const DeviceCall& call, Kind kind) {
  TFC_RETURN_IF_ERROR(operation->Check(size_));
  TFC_RETURN_IF_ERROR(Admit());
  if (operation->collective == Collective::kAllReduce || operation->collective == Collective::kReduceScatter)
    if (const auto possible = ReductionOf(*operation, size_); !possible.ok()) return possible.status();
  TFC_RETURN_IF_ERROR(Open(*operation, call, kind));
  if (operation->timeout_s <= 0) operation->timeout_s = options_.op_timeout_s;
  auto made = MakeTask(*operation, call);
  if (!made.ok()) return made.status();
  const TaskPtr task = made.Take();
  if (kind == kBucket) return BeginBucket(operation, call, task);
  const std::string name = call.by_name ? operation->name : std::to_string(++direct_sequence_);
  {
    // Under the lock: what ends the use of GPUs, or a departure, after this point finds the task.
    std::lock_guard<std::mutex> lock(mutex_);
    TFC_RETURN_IF_ERROR(StillUsable());
    TFC_RETURN_IF_ERROR(engine_->NobodyLeft(operation->Title()));
    task->operation = std::move(*operation);
    AddOpen(task, kind);
    Expect(name, task, kind);
  }
  Ask(RequestFor(*task, call.by_name ? Subject::kOperation : Subject::kDirectCall, name));
  return task;
}

// The engine knows the plan's order, and what its ranks have agreed on.
Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::BeginBucket(Operation* operation, const DeviceCall& call,
                                                                    const TaskPtr& task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TFC_RETURN_IF_ERROR(StillUsable());
    task->operation = std::move(*operation);
    task->awaits_turn = true;
    AddOpen(task, kBucket);
  }
  const Status started = engine_->StartGpuBucket(
      call.plan, call.bucket, task->operation,
      [this, task](const std::shared_ptr<Plan>& plan, uint32_t channel) { LaunchBucket(task, plan, channel); });
  if (started.ok()) return task;
  std::lock_guard<std::mutex> lock(mutex_);
  // Given up, or on its way through the host, meanwhile: its callback hears of that.
  if (open_[kBucket].tasks.erase(task->ticket) == 0) return task;
  *operation = std::move(task->operation);
  return started;
}

// Its turn in the plan has come.
void DeviceCommunicator::LaunchBucket(const TaskPtr& task, const std::shared_ptr<Plan>& plan, uint32_t channel) {
  const bool by_name = channel == kNoPlanChannel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (task->ended || !broken_.ok()) return;  // given up, or goes through the host
    task->plan = plan;
    task->awaits_turn = false;
    task->channel = channel;
    if (by_name) {
      Expect(task->operation.name, task, kByName);
    } else {
      const size_t number = kBucket + channel - kFirstGpuPlanChannel;
      Want(number, *task);
      task->agreed = true;
      inputs_[number].to_launch.push_back(task);
    }
  }
  Signal();
  if (by_name) Ask(RequestFor(*task, Subject::kOperation, task->operation.name));
}

// With the mutex, as the next two.
void DeviceCommunicator::AddOpen(const TaskPtr& task, Kind kind) {
  task->ticket = ++tickets_ * kKinds + kind;
  open_[kind].tasks.emplace(task->ticket, task);
}

// The ranks are asked about it.
void DeviceCommunicator::Expect(const std::string& name, const TaskPtr& task, Kind kind) {
  Want(kind, *task);
  inputs_[kind].unagreed[name].push_back(task);
}

void DeviceCommunicator::Want(size_t number, const Task& task) {
  if (!std::exchange(inputs_[number].wanted, true)) inputs_[number].setup_timeout_s = task.operation.timeout_s;
}

Status DeviceCommunicator::AllocateResult(const TaskPtr& task) {
  TFC_RETURN_IF_ERROR(WaitUntil(Deadline::After(task->deadline.Left() + kThreadGraceSeconds),
                                task->operation.Title() + ": the ranks have not come to it",
                                [&] { return task->agreed; }));
  Operation& operation = task->operation;
  int64_t rows = 0;
  for (const int64_t count : task->rows) rows += count;
  const size_t bytes = static_cast<size_t>(rows) * operation.RowBytes();
  std::byte* memory = operation.allocate(task->rows);
  if (memory != nullptr || bytes == 0) {
    operation.output.assign(1, MutableSpan{memory, bytes});
    return Status::Ok();
  }
  const Status none(Code::kResourceExhausted, operation.Title() + ": rank " + std::to_string(rank_) + ", " +
                                                  gpu_->Title() + " has no " + std::to_string(bytes) +
                                                  " bytes for the result");
  engine_->FailEverywhere(none);
  return engine_->failure().Get();
}

Result<uint64_t> DeviceCommunicator::Run(Operation operation, const DeviceCall& call) {
  TFC_RETURN_IF_ERROR(MayWait());
  std::lock_guard<OwnedMutex> direct(direct_mutex_);
  auto begun = Begin(&operation, call, kDirect);
  if (!begun.ok()) return begun.status();
  const TaskPtr task = begun.Take();
  if (IsRagged(task->operation)) TFC_RETURN_IF_ERROR(AllocateResult(task));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inputs_[kDirect].to_launch.push_back(task);
  }
  Signal();
  TFC_RETURN_IF_ERROR(WaitUntil(Deadline::After(task->deadline.Left() + kThreadGraceSeconds),
                                task->operation.Title() + " was not launched", [&] { return task->ended; }));
  if (!task->outcome.ok()) return task->outcome;
  const Gpu::Current current(*gpu_);
  TFC_RETURN_IF_ERROR(gpu_->Check(gpu_->api().cuStreamWaitEvent(call.stream, task->after, 0), "cuStreamWaitEvent"));
  return task->ticket;
}

Result<uint64_t> DeviceCommunicator::Submit(Operation operation, const DeviceCall& call) {
  if (call.plan != nullptr) TFC_RETURN_IF_ERROR(Engine::FillBucket(*call.plan, call.bucket, &operation));
  if (operation.name.empty())
    return Status(Code::kInvalidArgument, "an operation that is matched by name needs a name");
  if (IsRagged(operation))
    return Status(Code::kUnimplemented, operation.Title() + " on GPUs cannot be matched by name");
  auto begun = Begin(&operation, call, call.plan == nullptr ? kByName : kBucket);
  if (begun.ok()) {
    Signal();
    return begun.value()->ticket;
  }
  if (call.through_host && WithoutNccl()) return StageThroughHost(std::move(operation), call, begun.status());
  return begun.status();
}

// All ranks come to the same answer, if not at the same time.
bool DeviceCommunicator::WithoutNccl() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_.code() == Code::kUnimplemented;
}

Result<uint64_t> DeviceCommunicator::StageThroughHost(Operation operation, const DeviceCall& call, const Status& why) {
  {
    const Gate::Passage opening(&open_gate_, Deadline::After(options_.op_timeout_s));
    if (!opening.passed()) return AnotherOpens();
    if (!LoadDriver().ok()) return why;
    const auto device = DeviceOf(operation, call);
    if (!device.ok()) return Misplaced(device.status());
    const Status opened = OpenGpu(device.value());
    if (!opened.ok()) return Misplaced(opened.WithContext(operation.Title()));
    TFC_RETURN_IF_ERROR(StartNcclThread());
  }
  if (operation.timeout_s <= 0) operation.timeout_s = options_.op_timeout_s;
  auto made = MakeTask(operation, call);
  if (!made.ok()) return made.status();
  const TaskPtr task = made.Take();
  task->operation = std::move(operation);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (leaving_) return HasLeft();
    task->ticket = ++tickets_ * kKinds + kByName;
  }
  host_staging_->Start(task, why);
  return task->ticket;
}

DeviceCommunicator::TaskPtr DeviceCommunicator::FindOpen(uint64_t ticket) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto& open = open_[KindOf(ticket)].tasks;
  const auto found = open.find(ticket);
  return found == open.end() ? nullptr : found->second;
}

Status DeviceCommunicator::Join(uint64_t ticket, CUstream stream) {
  if (const auto joined = host_staging_->Join(ticket, stream)) return *joined;
  const TaskPtr task = FindOpen(ticket);
  if (task == nullptr) {  // complete, or lost
    std::lock_guard<std::mutex> lock(mutex_);
    const OpenTasks& open = open_[KindOf(ticket)];
    return ticket >= open.lost_from ? open.lost : Status::Ok();
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!task->ended) return Status(Code::kFailedPrecondition, task->operation.Title() + " has not been launched yet");
    if (!task->outcome.ok()) return task->outcome;
  }
  const Gpu::Current current(*gpu_);
  return gpu_->Check(gpu_->api().cuStreamWaitEvent(stream, task->after, 0), "cuStreamWaitEvent");
}

Status DeviceCommunicator::Wait(uint64_t ticket, double timeout_s) {
  TFC_RETURN_IF_ERROR(MayWait());
  const OpenTasks& open = open_[KindOf(ticket)];
  const double seconds = timeout_s > 0 ? timeout_s : options_.op_timeout_s;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++waiters_;
  }
  Signal();  // the NCCL thread looks more often while a thread waits
  const Status status = WaitUntil(Deadline::After(seconds), "the GPU operation is not complete", [&] {
    const bool complete = open.tasks.empty() || open.tasks.begin()->first > ticket;
    return complete && host_staging_->Complete(ticket);
  });
  std::lock_guard<std::mutex> lock(mutex_);
  --waiters_;
  return status.ok() && ticket >= open.lost_from ? open.lost : status;
}

Result<void*> DeviceCommunicator::Allocate(const void* like, size_t bytes) {
  const Gate::Passage opening(&open_gate_, Deadline::After(options_.op_timeout_s));
  if (!opening.passed()) return AnotherOpens();
  const Status driver = LoadDriver();
  if (!driver.ok()) return Unable(driver, kDirect);
  if (memory_gpu_ == nullptr) {
    const auto place =
        like == nullptr ? Result<int>(gpu_ == nullptr ? 0 : gpu_->info().ordinal) : GpuOfPointer(*cuda_, like);
    if (!place.ok()) return place.status();
    auto gpu = Gpu::Open(cuda_, place.value());
    if (!gpu.ok()) return gpu.status();
    std::lock_guard<std::mutex> lock(mutex_);
    memory_gpu_ = gpu.Take();
  }
  const Gpu::Current current(*memory_gpu_);
  auto memory = memory_gpu_->Allocate(std::max<size_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  return reinterpret_cast<void*>(static_cast<uintptr_t>(memory.value()));
}

void DeviceCommunicator::Free(void* memory) {
  std::shared_ptr<Gpu> gpu;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    gpu = memory_gpu_;
  }
  if (memory == nullptr || gpu == nullptr) return;
  const Gpu::Current current(*gpu);
  gpu->Free(static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(memory)));
}

// ---- agreement ----

void DeviceCommunicator::Ask(Request request) {
  if (size_ > 1) return engine_->Ask(request);
  Decision decision;
  decision.subject = request.subject;
  decision.name = std::move(request.name);
  decision.refusal = std::move(request.objection);
  decision.blobs.push_back(std::move(request.blob));
  OnDecision(decision);
}

Request DeviceCommunicator::RequestFor(const Task& task, Subject subject, std::string name) const {
  Request request;
  request.on_gpus = true;
  request.subject = subject;
  request.name = std::move(name);
  request.signature = task.operation.Signature();
  request.view = task.operation.Describe();
  request.timeout_s = task.operation.timeout_s;
  request.blob = RowsBlob(task.operation, size_);
  return request;
}

// What the ranks call it.
std::string DeviceCommunicator::SetupOf(size_t number) {
  if (number == kDirect) return "the set-up of direct calls";
  if (number == kByName) return "the set-up of calls by name";
  return "the set-up of queue " + std::to_string(number - kBucket + 1) + " of bucket plans";
}

Request DeviceCommunicator::SetupRequest(size_t number, double timeout_s) {
  Request request;
  request.on_gpus = true;
  request.subject = Subject::kSetup;
  request.name = request.view = SetupOf(number);
  request.timeout_s = timeout_s;
  return request;
}

// PROTOCOL unless there is something of each rank.
Status DeviceCommunicator::OfAllRanks(const std::vector<std::string>& blobs) const {
  if (blobs.size() == static_cast<size_t>(size_)) return Status::Ok();
  return Status(Code::kProtocol,
                "rank 0 has sent what " + std::to_string(blobs.size()) + " ranks say, not " + std::to_string(size_), 0);
}

Status DeviceCommunicator::RowsFrom(const Operation& operation, const std::vector<std::string>& blobs,
                                    std::vector<int64_t>* rows) const {
  TFC_RETURN_IF_ERROR(OfAllRanks(blobs));
  const size_t at = operation.collective == Collective::kAllToAll ? static_cast<size_t>(rank_) : 0;
  for (const std::string& blob : blobs) {
    int64_t count = -1;
    if (blob.size() >= (at + 1) * sizeof(count)) std::memcpy(&count, blob.data() + at * sizeof(count), sizeof(count));
    if (count < 0) return Status(Code::kProtocol, operation.Title() + ": rank 0 has sent no number of rows", 0);
    rows->push_back(count);
  }
  return Status::Ok();
}

void DeviceCommunicator::OnDecision(const Decision& decision) {
  if (decision.subject == Subject::kSetup) return OnSetup(decision);
  const Kind kind = decision.subject == Subject::kDirectCall ? kDirect : kByName;
  TaskPtr task;
  Done refused;
  Status malformed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Input& input = inputs_[kind];
    const auto found = input.unagreed.find(decision.name);
    if (found == input.unagreed.end()) return;  // lost meanwhile
    task = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) input.unagreed.erase(found);
    if (decision.refusal.ok()) {
      // The others may be with the NCCL thread already, which reads this without the mutex.
      if (IsRagged(task->operation)) malformed = RowsFrom(task->operation, decision.blobs, &task->rows);
      task->agreed = malformed.ok();
      if (kind == kByName) input.to_launch.push_back(task);
    } else {
      refused = task->End(decision.refusal);
      open_[KindOf(task->ticket)].tasks.erase(task->ticket);
    }
  }
  Signal();
  if (!malformed.ok()) engine_->FailEverywhere(malformed);
  if (!decision.refusal.ok() && task->plan != nullptr) engine_->EndGpuBucket(task->plan);
  if (refused) refused(decision.refusal);
}

// All ranks judge alike.
void DeviceCommunicator::OnSetup(const Decision& decision) {
  std::vector<SetupEntry> entries(decision.blobs.size());
  Status judged = decision.refusal;
  if (judged.ok()) judged = OfAllRanks(decision.blobs);
  for (size_t rank = 0; rank < entries.size() && judged.ok(); ++rank)
    judged = Decode(decision.blobs[rank], &entries[rank]);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (judged.ok()) judged = JudgeSetup(entries, engine_->topology(), devices_.share_gpus);
    if (broken_.ok()) broken_ = judged;
    for (size_t number = 0; number < kQueues; ++number) {
      if (!judged.ok() || SetupOf(number) != decision.name) continue;
      inputs_[number].agreed = true;
      inputs_[number].id = entries[0].id;
    }
  }
  // Ranks that had asked for a call before they hear of this are not to be waited for.
  if (!judged.ok()) engine_->CloseGpus();
  Signal();
}

// What the ranks have not agreed on by now the one that has left will never come to.
Status DeviceCommunicator::OnLeft() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t number = 0; number < kQueues; ++number) {
    const Input& input = inputs_[number];
    if (broken_.ok() && input.wanted && !input.agreed) TFC_RETURN_IF_ERROR(engine_->NobodyLeft(SetupOf(number)));
    for (const auto& [name, tasks] : input.unagreed)
      TFC_RETURN_IF_ERROR(engine_->NobodyLeft(tasks.front()->operation.Title()));
  }
  return Status::Ok();
}

// ---- end ----

void DeviceCommunicator::OnFailure() { Signal(); }

bool DeviceCommunicator::OnOwnThread() const {
  return nccl_thread_id_.load() == std::this_thread::get_id() || direct_mutex_.HeldByThisThread();
}

bool DeviceCommunicator::Shutdown(double timeout_s) {
  const Deadline end = Deadline::After(timeout_s + kEndSeconds);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (leaving_) return !stuck_;
    leaving_ = true;
  }
  // Who is opening the GPU now may still want to use it.
  const Gate::Passage opening(&open_gate_, end);
  std::thread thread;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    stop_deadline_ = Deadline::After(timeout_s);
    thread = std::move(nccl_thread_);
  }
  Signal();
  const bool ended = !thread.joinable() || NcclThreadEnds(end);
  if (thread.joinable() && ended) thread.join();
  if (opening.passed() && ended) return true;
  if (thread.joinable()) thread.detach();
  LeaveBehind();
  return false;
}

bool DeviceCommunicator::NcclThreadEnds(Deadline end) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, end.when(), [this] { return nccl_thread_ended_; });
}

// A thread is in a call that does not return. Nothing can end it, and when it returns is unknown.
void DeviceCommunicator::LeaveBehind() {
  std::vector<Done> waiting;
  bool incomplete = false;
  std::string text = "rank " + std::to_string(rank_) + ": a call of the CUDA driver or of NCCL";
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stuck_ = true;
    if (gpu_ != nullptr) text += " on " + gpu_->Title();
    text += " does not return; its thread is left behind";
    for (const OpenTasks& open : open_) {
      incomplete = incomplete || !open.tasks.empty();
      for (const auto& [ticket, task] : open.tasks)  // the lists are the NCCL thread's, which may come back
        if (Done done = task->End(Status(Code::kPeerLost, text, rank_))) waiting.push_back(std::move(done));
    }
  }
  options_.log.Warning(text);
  const Status stuck(Code::kPeerLost, text, rank_);
  if (incomplete) engine_->FailEverywhere(stuck);
  for (const Done& done : waiting) done(stuck);
}

}  // namespace tfc
