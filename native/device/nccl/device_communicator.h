// Collectives on GPUs beside a connected communicator: what is called when, and what happens when it fails.
//
// Queues, each with an NCCL communicator and a stream of its own: direct calls, which all ranks make in the same order;
// calls that are matched by name, which run in the order that rank 0 decides; and one for each bucket plan at work,
// whose buckets run in the plan's order. One thread, the NCCL thread, makes all NCCL calls and watches over what is
// under way; it exists from the first use on. See docs/design/native.md.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_DEVICE_COMMUNICATOR_H_
#define TFCOLLECTIVE_DEVICE_NCCL_DEVICE_COMMUNICATOR_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agreement/negotiation.h"
#include "base/deadline.h"
#include "base/event_count.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "communicator/operation.h"
#include "device/device.h"
#include "device/nccl/gpu.h"
#include "device/nccl/launch.h"
#include "device/nccl/libraries.h"
#include "device/nccl/setup.h"
#include "executor/channels.h"
#include "executor/engine.h"

namespace tfc {

struct DeviceCommunicatorOptions {
  double op_timeout_s = 300;
  double stall_warning_s = 10;
  int spin_us = 0;  // how long the NCCL thread and its callers look before they sleep
  Log log;
};

// Where the caller stands.
struct DeviceCall {
  int device = -1;            // ordinal; -1: that of the memory
  CUstream stream = nullptr;  // the operation comes after what this stream has been given before
  bool by_name = false;
  // By name only:
  Done launched;               // called once, when the operation is on the GPU or will never be
  bool through_host = false;   // goes through the host's memory where a rank has no NCCL
  std::shared_ptr<Plan> plan;  // the operation is a bucket of it, which fills in what it knows of the operation
  size_t bucket = 0;
};

class HostStagingBackend;

class DeviceCommunicator final : public Device {
 public:
  struct Task;  // opaque outside this room
  using TaskPtr = std::shared_ptr<Task>;

  // Attaches itself to the engine, which must outlive the last call of Shutdown.
  DeviceCommunicator(Engine* engine, DeviceCommunicatorOptions options);
  ~DeviceCommunicator() override;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  // Before the first use.
  Status Configure(DeviceOptions options);

  // Puts the operation on the GPU and makes the caller's stream wait for it; the host waits only for ranks that have
  // not come to the first operation, and where the size of the result depends on them. Gives a ticket.
  Result<uint64_t> Run(Operation operation, const DeviceCall& call);
  // Hands the operation over and returns at once. `stream` is joined later, with Join.
  Result<uint64_t> Submit(Operation operation, const DeviceCall& call);
  // Makes `stream` wait for the ticket's operation, which has been launched. Does not block.
  Status Join(uint64_t ticket, CUstream stream);
  // Blocks until that operation and those of its kind (direct, by name, buckets) that were begun before it are complete
  // here and all ranks have agreed on them.
  Status Wait(uint64_t ticket, double timeout_s);

  // Memory for results on the GPU where `like` lies; nullptr: on the one that this rank works on.
  Result<void*> Allocate(const void* like, size_t bytes);
  void Free(void* memory);

  void Enqueue(const std::shared_ptr<Plan>& plan, uint32_t channel) override;
  void Decide(const Decision& decision) override;
  Status CheckDepartures() override;
  void Fail(const Status& status) override;
  // Waits for what is under way, ends NCCL and the NCCL thread. Not on the NCCL thread. False: a call of
  // the driver or of NCCL does not return even then. The thread in it may return at any time: neither this object nor
  // the engine may be destroyed any more.
  bool Shutdown(double timeout_s);
  bool OnOwnThread() const;

 private:
  // The way in which an operation finds those of the other ranks.
  enum Kind : size_t { kDirect = 0, kByName = 1, kBucket = 2, kKinds = 3 };
  // Queues by number: of direct calls, of calls by name, and from kBucket on of the channels of plans.
  static constexpr size_t kQueues = kBucket + kMaxGpuPlans;

  // The progress of a queue's set-up. The NCCL thread never waits in it: the other queues' work goes on.
  enum class Stage { kUnused, kAsking, kConnecting, kUsable };
  // The part of a queue that only the NCCL thread uses.
  struct Queue {
    size_t number = 0;
    Stage stage = Stage::kUnused;
    Deadline connected_by = Deadline::After(0);
    NcclStream nccl;
    std::unique_ptr<PackedBuffer> packed;
    TaskPtr launching;  // on its way to the stream
    std::unique_ptr<StreamLaunch> launch;
    std::deque<TaskPtr> in_flight;
    uint64_t sequence = 0;  // of a plan's: of its next operation
    TaskPtr watched;        // of a plan's: the next to be complete, which the engine watches
  };
  // The part of a queue that callers and the ranks' decisions fill.
  struct Input {
    bool wanted = false;
    double setup_timeout_s = 0;                           // that of the operation that wants it
    bool agreed = false;                                  // all ranks can set it up ...
    std::string id;                                       // ... with this of NCCL's
    std::map<std::string, std::deque<TaskPtr>> unagreed;  // by name
    std::deque<TaskPtr> to_launch;
  };
  // The operations of one kind that are not complete, by ticket.
  struct OpenTasks {
    std::map<uint64_t, TaskPtr> tasks;
    uint64_t lost_from = UINT64_MAX;  // tickets from here on were given up ...
    Status lost;                      // ... for this reason
  };

  using CudaPtr = std::shared_ptr<const CudaApi>;
  using GpuPtr = std::shared_ptr<Gpu>;
  // What callers have found and opened, each once.
  struct Opened {
    CudaPtr cuda;
    std::shared_ptr<const NcclApi> nccl;
    GpuPtr gpu;
    GpuPtr memory_gpu;  // needs no NCCL
  };

  // Callers (any thread).
  Status Admit() const;
  Status MayWait() const;
  void Signal();
  // Until `holds`, which is called without the mutex, is true; else the failure, or DEADLINE_EXCEEDED with `what`.
  Status WaitUntil(Deadline deadline, const std::string& what, const std::function<bool()>& holds);
  Result<GpuPtr> Open(const Operation& operation, const DeviceCall& call, Kind kind);
  DeviceOptions devices() const;
  Opened opened() const;
  Result<CudaPtr> LoadDriver() TFC_REQUIRES(opening_);
  Result<GpuPtr> OpenGpu(const CudaPtr& cuda, int device) TFC_REQUIRES(opening_);
  Status FindNccl() TFC_REQUIRES(opening_);
  Status StartNcclThread() TFC_REQUIRES(opening_);
  static Status HasLeft();
  Status StillUsable() const TFC_REQUIRES(mutex_);
  static Status AnotherOpens();
  bool OpeningEnds(Deadline end);
  bool NcclThreadEnds(Deadline end);
  void LeaveBehind();
  Status Unable(const Status& why, Kind kind);
  Status Misplaced(const Status& why);
  Result<int> DeviceOf(const CudaApi& cuda, const Operation& operation, const DeviceCall& call) const;
  Result<TaskPtr> Prepare(Operation* operation, const DeviceCall& call, Kind kind);
  Result<TaskPtr> Begin(Operation* operation, const TaskPtr& task, Kind kind, std::string name);
  Result<TaskPtr> BeginBucket(Operation* operation, const DeviceCall& call, const TaskPtr& task);
  void LaunchBucket(const TaskPtr& task, const std::shared_ptr<Plan>& plan, uint32_t channel);
  void AddOpen(const TaskPtr& task, Kind kind) TFC_REQUIRES(mutex_);
  void Expect(const std::string& name, const TaskPtr& task, Kind kind) TFC_REQUIRES(mutex_);
  void Want(size_t number, const Task& task) TFC_REQUIRES(mutex_);
  Result<TaskPtr> MakeTask(const GpuPtr& gpu, const Operation& operation, const DeviceCall& call) const;
  bool WithoutNccl() const;
  Result<uint64_t> StageThroughHost(Operation operation, const DeviceCall& call, const Status& why);
  Status AllocateResult(const TaskPtr& task);
  TaskPtr FindOpen(uint64_t ticket) const;
  Status LetWait(CUstream stream, const TaskPtr& task) const;
  static Kind KindOf(uint64_t ticket) { return static_cast<Kind>(ticket % kKinds); }

  // Agreement.
  void Ask(Request request);
  Request RequestFor(const Task& task, Subject subject, std::string name) const;
  static std::string SetupOf(size_t number);
  static Request SetupRequest(size_t number, double timeout_s);
  void OnSetup(const Decision& decision);
  Status OfAllRanks(const std::vector<std::string>& blobs) const;
  Status RowsFrom(const Operation& operation, const std::vector<std::string>& blobs, std::vector<int64_t>* rows) const;

  // The NCCL thread.
  void RunNcclThread();
  bool Step() TFC_REQUIRES(nccl_role_);
  void SleepBeyond(uint64_t seen, Deadline deadline);
  void Rest(bool busy, uint64_t seen) TFC_REQUIRES(nccl_role_);
  void SetUp(Queue* queue) TFC_REQUIRES(nccl_role_);
  Status Broken() const;
  bool Wanted(const Queue& queue) const;
  void AskForSetup(Queue* queue) TFC_REQUIRES(nccl_role_);
  Status ConnectWhenAgreed(Queue* queue) TFC_REQUIRES(nccl_role_);
  Status Connect(Queue* queue, const std::string& id) TFC_REQUIRES(nccl_role_);
  Status FinishConnecting(Queue* queue) TFC_REQUIRES(nccl_role_);
  std::optional<Status> Settled(const NcclStream& stream, const std::string& what) const TFC_REQUIRES(nccl_role_);
  Status Settle(const NcclStream& stream, Deadline deadline, const std::string& what) TFC_REQUIRES(nccl_role_);
  bool LaunchNext(Queue* queue) TFC_REQUIRES(nccl_role_);
  Status BeginLaunch(Queue* queue) TFC_REQUIRES(nccl_role_);
  Result<bool> ContinueLaunch(Queue* queue) TFC_REQUIRES(nccl_role_);
  static bool UnderWay(const Queue& queue);
  void BreakQueues(const Status& status) TFC_REQUIRES(nccl_role_);
  void Watch(Queue* queue) TFC_REQUIRES(nccl_role_);
  void EndWatch(Queue* queue, bool completed) TFC_REQUIRES(nccl_role_);
  void Poll(Queue* queue) TFC_REQUIRES(nccl_role_);
  void CheckDeadlines() TFC_REQUIRES(nccl_role_);
  Status Overdue(const Task& task, Deadline::Clock::time_point now) const TFC_REQUIRES(mutex_, nccl_role_);
  TaskPtr WatchedOn(uint32_t channel) const TFC_REQUIRES(nccl_role_);
  Status Late(const Task& task) const TFC_REQUIRES(nccl_role_);
  void ReportLate(Deadline::Clock::time_point now) TFC_REQUIRES(nccl_role_);
  std::string WhereOf(const Task& task) const TFC_REQUIRES(nccl_role_);
  void WarnOfStall(Task* task, Deadline::Clock::time_point now, std::vector<std::string>* stalled) const
      TFC_REQUIRES(mutex_, nccl_role_);
  void GiveUp(const Status& status) TFC_REQUIRES(nccl_role_);
  void AbortQueues() TFC_REQUIRES(nccl_role_);
  void CloseQueues(Deadline deadline) TFC_REQUIRES(nccl_role_);
  void FinishFlights(Deadline deadline) TFC_REQUIRES(nccl_role_);
  void Finish(Queue* queue) TFC_REQUIRES(nccl_role_);
  void LoseOpen(const Status& status, std::vector<Done>* waiting) TFC_REQUIRES(mutex_);

  Engine* const engine_;
  const DeviceCommunicatorOptions options_;
  const int rank_;
  const int size_;

  const std::unique_ptr<HostStagingBackend> host_staging_;

  OwnedMutex direct_mutex_;  // one direct call at a time
  uint64_t direct_sequence_ TFC_GUARDED_BY(direct_mutex_) = 0;

  TimedMutex opening_;  // one caller at a time finds libraries and opens the GPU; taken before mutex_
  mutable Mutex mutex_;
  EventCount changed_;                // without mutex_
  std::atomic<uint64_t> signals_{0};  // counts what a thread might spin or sleep for
  DeviceOptions devices_ TFC_GUARDED_BY(mutex_);
  bool used_ TFC_GUARDED_BY(mutex_) = false;
  bool leaving_ TFC_GUARDED_BY(mutex_) = false;
  bool stop_ TFC_GUARDED_BY(mutex_) = false;
  bool nccl_thread_ended_ TFC_GUARDED_BY(mutex_) = false;
  bool stuck_ TFC_GUARDED_BY(mutex_) = false;
  Deadline stop_deadline_ TFC_GUARDED_BY(mutex_) = Deadline::After(0);
  Opened opened_ TFC_GUARDED_BY(mutex_);  // changed with opening_, too
  std::array<Input, kQueues> inputs_ TFC_GUARDED_BY(mutex_);
  std::array<OpenTasks, kKinds> open_ TFC_GUARDED_BY(mutex_);
  uint64_t tickets_ TFC_GUARDED_BY(mutex_) = 0;
  int waiters_ TFC_GUARDED_BY(mutex_) = 0;
  Status broken_ TFC_GUARDED_BY(mutex_);  // why the ranks cannot use GPUs; final
  std::thread nccl_thread_ TFC_GUARDED_BY(mutex_);
  std::atomic<std::thread::id> nccl_thread_id_{};

  ThreadRole nccl_role_;  // the NCCL thread
  std::shared_ptr<const NcclApi> nccl_ TFC_GUARDED_BY(nccl_role_);
  std::shared_ptr<Gpu> gpu_ TFC_GUARDED_BY(nccl_role_);
  std::array<Queue, kQueues> queues_ TFC_GUARDED_BY(nccl_role_);
  Deadline::Clock::time_point active_ TFC_GUARDED_BY(nccl_role_){};   // when it last launched something
  std::chrono::microseconds interval_ TFC_GUARDED_BY(nccl_role_){0};  // until it looks again
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_DEVICE_COMMUNICATOR_H_
