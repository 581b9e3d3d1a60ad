#include "device/nccl/host_staging.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "device/nccl/device_task.h"

namespace tfc {
namespace {

constexpr double kGraceSeconds = 1;  // for copies that a failure has left under way

CUdeviceptr DevicePointer(const void* memory) { return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(memory)); }

size_t BytesOf(const ConstSpans& spans) {
  size_t bytes = 0;
  for (const ConstSpan& span : spans) bytes += span.size;
  return bytes;
}

}  // namespace

struct HostStagingBackend::Flight {
  enum class Stage { kToHost, kReducing, kToDevice };

  DeviceCommunicator::TaskPtr task;
  Stage stage = Stage::kToHost;
  Operation on_host;  // the same on the host's memory
  Block block;
};

HostStagingBackend::~HostStagingBackend() {
  if (gpu_ == nullptr) return;
  const Gpu::Current current(*gpu_);
  for (const Block& block : free_) gpu_->api().cuMemFreeHost(block.memory);
  // Memory that the GPU may still write to is not given back.
  if (!lost_.empty() && CopiesEnd())
    for (const Block& block : lost_) gpu_->api().cuMemFreeHost(block.memory);
  if (stream_ != nullptr) gpu_->api().cuStreamDestroy(stream_);
}

// Whether all that was given to the stream comes to its end in a moment. Polls: the driver's own waits have no
// deadline.
bool HostStagingBackend::CopiesEnd() {
  if (stream_ == nullptr) return true;
  const auto end = gpu_->TakeEvent();
  if (!end.ok()) return false;
  const CudaApi& api = gpu_->api();
  CUresult state = api.cuEventRecord(end.value(), stream_);
  const bool recorded = state == kCudaSuccess;
  const Deadline deadline = Deadline::After(kGraceSeconds);
  while (recorded && (state = api.cuEventQuery(end.value())) == kCudaNotReady && !deadline.Passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  gpu_->GiveBack(end.value());
  return state == kCudaSuccess;
}

void HostStagingBackend::Start(const DeviceCommunicator::TaskPtr& task, const Status& why) {
  auto flight = std::make_shared<Flight>();
  flight->task = task;
  bool tell = false;
  Status status = engine_->failure().Get();
  bool aborted = false;
  {
    const MutexLock lock(mutex_);
    tell = !std::exchange(reported_, true);
    if (gpu_ == nullptr) gpu_ = task->gpu;
    aborted = !aborted_.ok();
    if (status.ok()) status = aborted ? aborted_ : CopyToHost(flight.get());
    if (status.ok()) flights_.emplace(task->ticket, flight);
  }
  if (tell) log_.Warning("tensors on GPUs travel through the host's memory, which is slow: " + why.message());
  if (status.ok()) return changed_();
  if (!aborted) Complain(*flight, status);
  End(flight, status);
}

Status HostStagingBackend::CopyToHost(Flight* flight) {
  const Gpu::Current current(*gpu_);
  const CudaApi& api = gpu_->api();
  const Operation& operation = flight->task->operation;
  if (stream_ == nullptr) {
    auto stream = gpu_->CreateUrgentStream();
    if (!stream.ok()) return stream.status();
    stream_ = stream.Take();
  }
  const size_t input_bytes = BytesOf(operation.input);
  const size_t output_bytes = BytesOf(AsConst(operation.output));
  TFC_RETURN_IF_ERROR(Reserve(flight, input_bytes + output_bytes));
  flight->on_host = operation;
  flight->on_host.submitted_ns = 0;
  TFC_RETURN_IF_ERROR(gpu_->Check(api.cuStreamWaitEvent(stream_, flight->task->before, 0), "cuStreamWaitEvent"));
  std::byte* at = flight->block.memory;
  for (ConstSpan& span : flight->on_host.input) {
    if (span.size > 0)
      TFC_RETURN_IF_ERROR(
          gpu_->Check(api.cuMemcpyDtoHAsync(at, DevicePointer(span.data), span.size, stream_), "cuMemcpyDtoHAsync"));
    span.data = at;
    at += span.size;
  }
  for (MutableSpan& span : flight->on_host.output) {
    span.data = at;
    at += span.size;
  }
  return gpu_->Check(api.cuEventRecord(flight->task->after, stream_), "cuEventRecord");
}

// Pinned: only from such memory does the GPU copy while others work.
Status HostStagingBackend::Reserve(Flight* flight, size_t bytes) {
  const auto fits = [&](const Block& block) { return block.size >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found != free_.end()) {
    flight->block = *found;
    free_.erase(found);
    return Status::Ok();
  }
  void* memory = nullptr;
  const size_t size = std::max<size_t>(bytes, 1);
  TFC_RETURN_IF_ERROR(gpu_->Check(gpu_->api().cuMemHostAlloc(&memory, size, 0),
                                  "cuMemHostAlloc of " + std::to_string(size) + " bytes"));
  flight->block = Block{static_cast<std::byte*>(memory), size};
  return Status::Ok();
}

std::optional<Status> HostStagingBackend::Join(uint64_t ticket, CUstream stream) const {
  DeviceCommunicator::TaskPtr task;  // kept: its event is waited for
  {
    const MutexLock lock(mutex_);
    const auto found = flights_.find(ticket);
    if (found == flights_.end()) return std::nullopt;
    task = found->second->task;
    if (!task->ended) return Status(Code::kFailedPrecondition, task->operation.Title() + " has not been launched yet");
  }
  const Gpu::Current current(*task->gpu);
  return task->gpu->Check(task->gpu->api().cuStreamWaitEvent(stream, task->after, 0), "cuStreamWaitEvent");
}

bool HostStagingBackend::Complete(uint64_t ticket) const {
  const MutexLock lock(mutex_);
  return flights_.empty() || flights_.begin()->first > ticket;
}

bool HostStagingBackend::busy() const {
  const MutexLock lock(mutex_);
  return std::any_of(flights_.begin(), flights_.end(),
                     [](const auto& one) { return one.second->stage != Flight::Stage::kReducing; });
}

bool HostStagingBackend::empty() const {
  const MutexLock lock(mutex_);
  return flights_.empty();
}

void HostStagingBackend::Poll() {
  std::vector<FlightPtr> arrived, complete;
  std::vector<std::pair<FlightPtr, Status>> failed;
  {
    const MutexLock lock(mutex_);
    for (const auto& [ticket, flight] : flights_) {
      if (flight->stage == Flight::Stage::kReducing) continue;
      const CUresult state = gpu_->api().cuEventQuery(flight->task->after);
      const std::string title = flight->task->operation.Title();
      if (state == kCudaSuccess) {
        (flight->stage == Flight::Stage::kToHost ? arrived : complete).push_back(flight);
      } else if (state != kCudaNotReady) {
        failed.emplace_back(flight, gpu_->Check(state, title));
      } else if (flight->task->deadline.Passed()) {
        failed.emplace_back(flight, Status(Code::kDeadlineExceeded, title + ": the GPU does not come to its copies"));
      }
    }
    for (const FlightPtr& flight : arrived) flight->stage = Flight::Stage::kReducing;
  }
  for (const auto& [flight, status] : failed) {
    Complain(*flight, status);
    End(flight, status);
  }
  for (const FlightPtr& flight : arrived) Submit(flight);
  for (const FlightPtr& flight : complete) Forget(flight);
  if (!complete.empty()) changed_();
}

void HostStagingBackend::Submit(const FlightPtr& flight) {
  Operation operation = flight->on_host;
  operation.timeout_s = std::max(0.001, flight->task->deadline.Left());
  const Status submitted =
      engine_->Submit(std::move(operation), [this, flight](const Status& status) { OnReduced(flight, status); });
  if (!submitted.ok()) OnReduced(flight, submitted);
}

void HostStagingBackend::OnReduced(const FlightPtr& flight, const Status& status) {
  Status back = status;
  if (back.ok()) {
    const MutexLock lock(mutex_);
    flight->stage = Flight::Stage::kToDevice;
    back = CopyBack(flight.get());
    if (!back.ok()) Lose(flight.get());  // at once: Poll would take the event of the way to the host for this one's
  }
  if (!back.ok() && status.ok()) Complain(*flight, back);
  End(flight, back);
}

Status HostStagingBackend::CopyBack(Flight* flight) {
  const Gpu::Current current(*gpu_);
  const CudaApi& api = gpu_->api();
  const MutableSpans& to = flight->task->operation.output;
  const MutableSpans& from = flight->on_host.output;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].size == 0) continue;
    TFC_RETURN_IF_ERROR(gpu_->Check(api.cuMemcpyHtoDAsync(DevicePointer(to[i].data), from[i].data, to[i].size, stream_),
                                    "cuMemcpyHtoDAsync"));
  }
  return gpu_->Check(api.cuEventRecord(flight->task->after, stream_), "cuEventRecord");
}

// The results are on their way to the GPU, or will never be: tells who waits for that.
void HostStagingBackend::End(const FlightPtr& flight, const Status& status) {
  Done done;
  {
    const MutexLock lock(mutex_);
    done = flight->task->End(status);
    if (!status.ok()) Lose(flight.get());
  }
  changed_();
  if (done) done(status);
}

// The engine has let go of the memory when it says so; the GPU's copies may still run.
void HostStagingBackend::Lose(Flight* flight) {
  flights_.erase(flight->task->ticket);
  const Block block = std::exchange(flight->block, Block{});
  if (block.memory == nullptr) return;
  (flight->stage == Flight::Stage::kReducing ? free_ : lost_).push_back(block);
}

void HostStagingBackend::Forget(const FlightPtr& flight) {
  const MutexLock lock(mutex_);
  if (flights_.erase(flight->task->ticket) > 0) free_.push_back(std::exchange(flight->block, Block{}));
}

// The other ranks would wait for this one.
void HostStagingBackend::Complain(const Flight& flight, const Status& status) {
  if (engine_->failure().failed()) return;
  const int rank = engine_->topology().rank;
  engine_->FailEverywhere(Status(status.code(),
                                 "rank " + std::to_string(rank) + ", " + flight.task->gpu->Title() + ": " +
                                     flight.task->operation.Title() + " through the host: " + status.message(),
                                 rank, status.sys_errno()));
}

void HostStagingBackend::Abort(const Status& status) {
  std::vector<FlightPtr> lost;
  {
    const MutexLock lock(mutex_);
    aborted_ = status;
    for (const auto& [ticket, flight] : flights_)
      if (flight->stage != Flight::Stage::kReducing) lost.push_back(flight);
  }
  for (const FlightPtr& flight : lost) End(flight, status);
}

}  // namespace tfc
