// The half that callers and peers see; what the NCCL thread does is in nccl_thread.cc.
#include "device/nccl/device_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/thread.h"
#include "device/nccl/device_task.h"
#include "device/nccl/host_staging.h"

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
    : engine_(engine),
      options_(std::move(options)),
      rank_(engine->topology().rank),
      size_(engine->topology().size),
      host_staging_(std::make_unique<HostStagingBackend>(engine_, options_.log, [this] { Signal(); })) {
  for (size_t number = 0; number < kQueues; ++number) queues_[number].number = number;
  engine_->Attach(this);
}

DeviceCommunicator::~DeviceCommunicator() { Shutdown(0); }

Status DeviceCommunicator::Configure(DeviceOptions options) {
  const MutexLock lock(mutex_);
  if (used_) return Status(Code::kFailedPrecondition, "GPUs are in use already: configure them before the first use");
  devices_ = std::move(options);
  return Status::Ok();
}

Status DeviceCommunicator::Admit() const {
  if (engine_->failure().failed()) return engine_->failure().Get();
  const MutexLock lock(mutex_);
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
  signals_.fetch_add(1, std::memory_order_release);
  changed_.Notify();
}

Status DeviceCommunicator::WaitUntil(Deadline deadline, const std::string& what, const std::function<bool()>& holds) {
  using Clock = Deadline::Clock;
  bool held = false;
  const auto over = [&] { return (held = held || holds()) || engine_->failure().failed(); };
  const auto spin_until = Clock::now() + std::chrono::microseconds(options_.spin_us);
  for (uint64_t seen = signals_.load(std::memory_order_acquire); Clock::now() < spin_until && !over();) {
    while (signals_.load(std::memory_order_acquire) == seen && Clock::now() < spin_until) {
    }
    seen = signals_.load(std::memory_order_acquire);
  }
  const bool in_time = changed_.WaitUntil(deadline, over);
  if (held) return Status::Ok();
  return in_time ? engine_->failure().Get() : Status(Code::kDeadlineExceeded, what);
}

DeviceOptions DeviceCommunicator::devices() const {
  const MutexLock lock(mutex_);
  return devices_;
}

DeviceCommunicator::Opened DeviceCommunicator::opened() const {
  const MutexLock lock(mutex_);
  return opened_;
}

Result<DeviceCommunicator::CudaPtr> DeviceCommunicator::LoadDriver() {
  if (CudaPtr cuda = opened().cuda) return cuda;
  auto cuda = LoadCuda(devices());
  if (!cuda.ok()) return cuda.status();
  const MutexLock lock(mutex_);
  return opened_.cuda = cuda.Take();
}

Result<DeviceCommunicator::GpuPtr> DeviceCommunicator::OpenGpu(const CudaPtr& cuda, int device) {
  if (GpuPtr gpu = opened().gpu) {
    if (device == gpu->info().ordinal) return gpu;
    return Status(Code::kInvalidArgument, "it is on GPU " + std::to_string(device) + ", but rank " +
                                              std::to_string(rank_) + " works on " + gpu->Title());
  }
  auto gpu = Gpu::Open(cuda, device);
  if (!gpu.ok()) return gpu.status();
  const MutexLock lock(mutex_);
  return opened_.gpu = gpu.Take();
}

Status DeviceCommunicator::FindNccl() {
  if (opened().nccl != nullptr) return Status::Ok();
  auto nccl = LoadNccl(devices());
  if (!nccl.ok()) return nccl.status();
  const MutexLock lock(mutex_);
  opened_.nccl = nccl.Take();
  return Status::Ok();
}

// The first piece says where; the others must be there too.
Result<int> DeviceCommunicator::DeviceOf(const CudaApi& cuda, const Operation& operation,
                                         const DeviceCall& call) const {
  int device = call.device;
  const auto look = [&](const void* memory, size_t bytes, const char* what) -> Status {
    if (bytes == 0 || memory == nullptr) return Status::Ok();
    auto found = GpuOfPointer(cuda, memory);
    if (!found.ok()) return found.status().WithContext(operation.Title() + ": " + what);
    if (device < 0) device = found.value();
    if (found.value() == device) return Status::Ok();
    return Status(Code::kInvalidArgument, operation.Title() + ": " + what + " is on GPU " +
                                              std::to_string(found.value()) + ", not on GPU " + std::to_string(device));
  };
  for (const ConstSpan& piece : operation.input) TFC_RETURN_IF_ERROR(look(piece.data, piece.size, "an input"));
  for (const MutableSpan& piece : operation.output) TFC_RETURN_IF_ERROR(look(piece.data, piece.size, "an output"));
  if (device >= 0) return device;
  const GpuPtr gpu = opened().gpu;
  return gpu == nullptr ? 0 : gpu->info().ordinal;
}

Result<DeviceCommunicator::GpuPtr> DeviceCommunicator::Open(const Operation& operation, const DeviceCall& call,
                                                            Kind kind) {
  if (!opening_.TryLockUntil(Deadline::After(options_.op_timeout_s))) return AnotherOpens();
  const MutexLock opening(opening_, std::adopt_lock);
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
    used_ = true;
  }
  const auto driver = LoadDriver();
  if (!driver.ok()) return Unable(driver.status(), kind);
  const auto device = DeviceOf(*driver.value(), operation, call);
  if (!device.ok()) return Misplaced(device.status());
  const Status found = FindNccl();
  if (!found.ok()) return Unable(found, kind);
  const bool first = opened().gpu == nullptr;
  const auto gpu = OpenGpu(driver.value(), device.value());
  if (!gpu.ok()) return first ? Unable(gpu.status(), kind) : Misplaced(gpu.status().WithContext(operation.Title()));
  TFC_RETURN_IF_ERROR(StartNcclThread());
  return gpu;
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
    const MutexLock lock(mutex_);  // Shutdown finds it here, or it is not started
    if (nccl_thread_.joinable()) return Status::Ok();
    if (leaving_) return HasLeft();
    nccl_role_.AssertHeld();  // no thread has it yet
    nccl_ = opened_.nccl;
    gpu_ = opened_.gpu;
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
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
    broken_ = request.objection;
  }
  const Status objection = request.objection;
  Ask(std::move(request));
  return objection;
}

Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::MakeTask(const GpuPtr& gpu, const Operation& operation,
                                                                 const DeviceCall& call) const {
  const Gpu::Current current(*gpu);
  auto task = std::make_shared<Task>(gpu);
  for (CUevent* event : {&task->before, &task->after}) {
    auto taken = gpu->TakeEvent();
    if (!taken.ok()) return taken.status();
    *event = taken.Take();
  }
  TFC_RETURN_IF_ERROR(
      gpu->Check(gpu->api().cuEventRecord(task->before, call.stream), operation.Title() + ": cuEventRecord"));
  task->began = Deadline::Clock::now();
  task->deadline = Deadline::After(operation.timeout_s, task->began);
  task->launched = call.launched;
  task->through_host = call.through_host;
  return task;
}

Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::Prepare(Operation* operation, const DeviceCall& call,
                                                                Kind kind) {
  TFC_RETURN_IF_ERROR(operation->Check(size_));
  TFC_RETURN_IF_ERROR(Admit());
  if (operation->collective == Collective::kAllReduce || operation->collective == Collective::kReduceScatter)
    if (const auto possible = ReductionOf(*operation, size_); !possible.ok()) return possible.status();
  const auto gpu = Open(*operation, call, kind);
  if (!gpu.ok()) return gpu.status();
  if (operation->timeout_s <= 0) operation->timeout_s = options_.op_timeout_s;
  return MakeTask(gpu.value(), *operation, call);
}

// Takes the operation's memory over where it succeeds.
Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::Begin(Operation* operation, const TaskPtr& task, Kind kind,
                                                              std::string name) {
  Status left;
  {
    // Under the lock: what ends the use of GPUs, or a departure, after this point finds the task.
    const MutexLock lock(mutex_);
    TFC_RETURN_IF_ERROR(StillUsable());
    left = engine_->CheckNoneLeft(operation->Title());
    if (left.ok()) {
      task->operation = std::move(*operation);
      AddOpen(task, kind);
      Expect(name, task, kind);
    }
  }
  if (!left.ok()) return engine_->FailWith(left);
  Ask(RequestFor(*task, kind == kByName ? Subject::kOperation : Subject::kDirectCall, std::move(name)));
  return task;
}

// The engine knows the plan's order, and what its ranks have agreed on.
Result<DeviceCommunicator::TaskPtr> DeviceCommunicator::BeginBucket(Operation* operation, const DeviceCall& call,
                                                                    const TaskPtr& task) {
  {
    const MutexLock lock(mutex_);
    TFC_RETURN_IF_ERROR(StillUsable());
    task->operation = std::move(*operation);
    task->awaits_turn = true;
    AddOpen(task, kBucket);
  }
  const Status started = size_ == 1
                             ? engine_->Admit()
                             : engine_->StartBucketOn(this, call.plan, call.bucket, task->operation, task->ticket);
  if (started.ok() && size_ == 1) LaunchBucket(task, nullptr, kNoPlanChannel);
  if (started.ok()) return task;
  const MutexLock lock(mutex_);
  // Given up, or on its way through the host, meanwhile: its callback hears of that.
  if (open_[kBucket].tasks.erase(task->ticket) == 0) return task;
  *operation = std::move(task->operation);
  return started;
}

void DeviceCommunicator::Enqueue(const std::shared_ptr<Plan>& plan, uint32_t channel) {
  engine_->TakeTurns(plan, [&](const Pending& run) {
    if (const TaskPtr task = FindOpen(run.ticket)) LaunchBucket(task, plan, channel);
  });
}

// Its turn in the plan has come.
void DeviceCommunicator::LaunchBucket(const TaskPtr& task, const std::shared_ptr<Plan>& plan, uint32_t channel) {
  const bool by_name = channel == kNoPlanChannel;
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok() || task->ended) return;  // goes through the host, whose lock guards it then, or given up
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
                                task->operation.Title() + ": the ranks have not come to it", [&] {
                                  const MutexLock lock(mutex_);
                                  return task->agreed;
                                }));
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
                                                  task->gpu->Title() + " has no " + std::to_string(bytes) +
                                                  " bytes for the result");
  engine_->FailEverywhere(none);
  return engine_->failure().Get();
}

Result<uint64_t> DeviceCommunicator::Run(Operation operation, const DeviceCall& call) {
  TFC_RETURN_IF_ERROR(MayWait());
  const MutexLock direct(direct_mutex_);
  const auto prepared = Prepare(&operation, call, kDirect);
  if (!prepared.ok()) return prepared.status();
  auto begun = Begin(&operation, prepared.value(), kDirect, std::to_string(++direct_sequence_));
  if (!begun.ok()) return begun.status();
  const TaskPtr task = begun.Take();
  if (IsRagged(task->operation)) TFC_RETURN_IF_ERROR(AllocateResult(task));
  {
    const MutexLock lock(mutex_);
    inputs_[kDirect].to_launch.push_back(task);
  }
  Signal();
  TFC_RETURN_IF_ERROR(WaitUntil(Deadline::After(task->deadline.Left() + kThreadGraceSeconds),
                                task->operation.Title() + " was not launched", [&] {
                                  const MutexLock lock(mutex_);
                                  return task->ended;
                                }));
  TFC_RETURN_IF_ERROR(LetWait(call.stream, task));
  return task->ticket;
}

Result<uint64_t> DeviceCommunicator::Submit(Operation operation, const DeviceCall& call) {
  if (call.plan != nullptr) TFC_RETURN_IF_ERROR(Engine::FillBucket(*call.plan, call.bucket, &operation));
  if (operation.name.empty())
    return Status(Code::kInvalidArgument, "an operation that is matched by name needs a name");
  if (IsRagged(operation))
    return Status(Code::kUnimplemented, operation.Title() + " on GPUs cannot be matched by name");
  auto begun = Prepare(&operation, call, call.plan == nullptr ? kByName : kBucket);
  if (begun.ok())
    begun = call.plan == nullptr ? Begin(&operation, begun.value(), kByName, operation.name)
                                 : BeginBucket(&operation, call, begun.value());
  if (begun.ok()) {
    Signal();
    return begun.value()->ticket;
  }
  if (call.through_host && WithoutNccl()) return StageThroughHost(std::move(operation), call, begun.status());
  return begun.status();
}

// All ranks come to the same answer, if not at the same time.
bool DeviceCommunicator::WithoutNccl() const {
  const MutexLock lock(mutex_);
  return broken_.code() == Code::kUnimplemented;
}

Result<uint64_t> DeviceCommunicator::StageThroughHost(Operation operation, const DeviceCall& call, const Status& why) {
  GpuPtr gpu;
  {
    if (!opening_.TryLockUntil(Deadline::After(options_.op_timeout_s))) return AnotherOpens();
    const MutexLock opening(opening_, std::adopt_lock);
    const auto driver = LoadDriver();
    if (!driver.ok()) return why;
    const auto device = DeviceOf(*driver.value(), operation, call);
    if (!device.ok()) return Misplaced(device.status());
    const auto opened = OpenGpu(driver.value(), device.value());
    if (!opened.ok()) return Misplaced(opened.status().WithContext(operation.Title()));
    TFC_RETURN_IF_ERROR(StartNcclThread());
    gpu = opened.value();
  }
  if (operation.timeout_s <= 0) operation.timeout_s = options_.op_timeout_s;
  auto made = MakeTask(gpu, operation, call);
  if (!made.ok()) return made.status();
  const TaskPtr task = made.Take();
  task->operation = std::move(operation);
  {
    const MutexLock lock(mutex_);
    if (leaving_) return HasLeft();
    task->ticket = ++tickets_ * kKinds + kByName;
  }
  host_staging_->Start(task, why);
  return task->ticket;
}

DeviceCommunicator::TaskPtr DeviceCommunicator::FindOpen(uint64_t ticket) const {
  const MutexLock lock(mutex_);
  const auto& open = open_[KindOf(ticket)].tasks;
  const auto found = open.find(ticket);
  return found == open.end() ? nullptr : found->second;
}

Status DeviceCommunicator::Join(uint64_t ticket, CUstream stream) {
  if (const auto joined = host_staging_->Join(ticket, stream)) return *joined;
  const TaskPtr task = FindOpen(ticket);
  if (task == nullptr) {  // complete, or lost
    const MutexLock lock(mutex_);
    const OpenTasks& open = open_[KindOf(ticket)];
    return ticket >= open.lost_from ? open.lost : Status::Ok();
  }
  return LetWait(stream, task);
}

// Makes the caller's stream wait for an operation that has been launched.
Status DeviceCommunicator::LetWait(CUstream stream, const TaskPtr& task) const {
  {
    const MutexLock lock(mutex_);
    if (!task->ended) return Status(Code::kFailedPrecondition, task->operation.Title() + " has not been launched yet");
    if (!task->outcome.ok()) return task->outcome;
  }
  const Gpu::Current current(*task->gpu);
  return task->gpu->Check(task->gpu->api().cuStreamWaitEvent(stream, task->after, 0), "cuStreamWaitEvent");
}

Status DeviceCommunicator::Wait(uint64_t ticket, double timeout_s) {
  TFC_RETURN_IF_ERROR(MayWait());
  const double seconds = timeout_s > 0 ? timeout_s : options_.op_timeout_s;
  {
    const MutexLock lock(mutex_);
    ++waiters_;
  }
  Signal();  // the NCCL thread looks more often while a thread waits
  const Status status = WaitUntil(Deadline::After(seconds), "the GPU operation is not complete", [&] {
    const MutexLock lock(mutex_);
    const std::map<uint64_t, TaskPtr>& tasks = open_[KindOf(ticket)].tasks;
    return (tasks.empty() || tasks.begin()->first > ticket) && host_staging_->Complete(ticket);
  });
  const MutexLock lock(mutex_);
  --waiters_;
  const OpenTasks& open = open_[KindOf(ticket)];
  return status.ok() && ticket >= open.lost_from ? open.lost : status;
}

Result<void*> DeviceCommunicator::Allocate(const void* like, size_t bytes) {
  if (!opening_.TryLockUntil(Deadline::After(options_.op_timeout_s))) return AnotherOpens();
  const MutexLock opening(opening_, std::adopt_lock);
  const auto driver = LoadDriver();
  if (!driver.ok()) return Unable(driver.status(), kDirect);
  auto [cuda, nccl, gpu, memory_gpu] = opened();
  if (memory_gpu == nullptr) {
    const auto place =
        like == nullptr ? Result<int>(gpu == nullptr ? 0 : gpu->info().ordinal) : GpuOfPointer(*cuda, like);
    if (!place.ok()) return place.status();
    auto found = Gpu::Open(cuda, place.value());
    if (!found.ok()) return found.status();
    const MutexLock lock(mutex_);
    opened_.memory_gpu = memory_gpu = found.Take();
  }
  const Gpu::Current current(*memory_gpu);
  auto memory = memory_gpu->Allocate(std::max<size_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  return reinterpret_cast<void*>(static_cast<uintptr_t>(memory.value()));
}

void DeviceCommunicator::Free(void* memory) {
  const GpuPtr gpu = opened().memory_gpu;
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
  Decide(decision);
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

void DeviceCommunicator::Decide(const Decision& decision) {
  if (decision.subject == Subject::kSetup) return OnSetup(decision);
  const Kind kind = decision.subject == Subject::kDirectCall ? kDirect : kByName;
  TaskPtr task;
  Done refused;
  Status malformed;
  {
    const MutexLock lock(mutex_);
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
  if (!decision.refusal.ok() && task->plan != nullptr) engine_->Complete(task->plan);
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
    const MutexLock lock(mutex_);
    if (judged.ok()) judged = JudgeSetup(entries, engine_->topology(), devices_.share_gpus);
    if (broken_.ok()) broken_ = judged;
    for (size_t number = 0; number < kQueues; ++number) {
      if (!judged.ok() || SetupOf(number) != decision.name) continue;
      inputs_[number].agreed = true;
      inputs_[number].id = entries[0].id;
    }
  }
  // Ranks that had asked for a call before they hear of this are not to be waited for.
  if (!judged.ok()) engine_->CloseDevice();
  Signal();
}

// What the ranks have not agreed on by now the one that has left will never come to.
Status DeviceCommunicator::CheckDepartures() {
  const MutexLock lock(mutex_);
  for (size_t number = 0; number < kQueues; ++number) {
    const Input& input = inputs_[number];
    if (broken_.ok() && input.wanted && !input.agreed) TFC_RETURN_IF_ERROR(engine_->CheckNoneLeft(SetupOf(number)));
    for (const auto& [name, tasks] : input.unagreed)
      TFC_RETURN_IF_ERROR(engine_->CheckNoneLeft(tasks.front()->operation.Title()));
  }
  return Status::Ok();
}

// ---- end ----

void DeviceCommunicator::Fail(const Status&) { Signal(); }

bool DeviceCommunicator::OnOwnThread() const {
  return nccl_thread_id_.load() == std::this_thread::get_id() || direct_mutex_.HeldByThisThread();
}

bool DeviceCommunicator::Shutdown(double timeout_s) {
  const Deadline end = Deadline::After(timeout_s + kEndSeconds);
  {
    const MutexLock lock(mutex_);
    if (leaving_) return !stuck_;
    leaving_ = true;
  }
  const bool opening_ended = OpeningEnds(end);  // it may still have used what is ended here
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    stop_deadline_ = Deadline::After(timeout_s);
    thread = std::move(nccl_thread_);
  }
  Signal();
  const bool ended = !thread.joinable() || NcclThreadEnds(end);
  if (thread.joinable() && ended) thread.join();
  if (opening_ended && ended) return true;
  if (thread.joinable()) thread.detach();
  LeaveBehind();
  return false;
}

bool DeviceCommunicator::OpeningEnds(Deadline end) {
  if (!opening_.TryLockUntil(end)) return false;
  opening_.unlock();
  return true;
}

bool DeviceCommunicator::NcclThreadEnds(Deadline end) {
  return changed_.WaitUntil(end, [this] {
    const MutexLock lock(mutex_);
    return nccl_thread_ended_;
  });
}

// A thread is in a call that does not return. Nothing can end it, and when it returns is unknown.
void DeviceCommunicator::LeaveBehind() {
  std::vector<Done> waiting;
  bool incomplete = false;
  std::string text = "rank " + std::to_string(rank_) + ": a call of the CUDA driver or of NCCL";
  {
    const MutexLock lock(mutex_);
    stuck_ = true;
    if (opened_.gpu != nullptr) text += " on " + opened_.gpu->Title();
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
