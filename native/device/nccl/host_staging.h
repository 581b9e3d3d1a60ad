// Fallback if a rank has no NCCL: operations on device memory that go through the host's memory and the engine. Correct
// and slow. Nothing here waits; the NCCL thread of the DeviceCommunicator watches what is under way.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_HOST_STAGING_H_
#define TFCOLLECTIVE_DEVICE_NCCL_HOST_STAGING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "device/nccl/device_communicator.h"
#include "device/nccl/gpu.h"
#include "executor/engine.h"

namespace tfc {

class HostStagingBackend {
 public:
  // `changed` is called, on any thread and without a lock, when an operation has come further.
  HostStagingBackend(Engine* engine, Log log, std::function<void()> changed)
      : engine_(engine), log_(std::move(log)), changed_(std::move(changed)) {}
  ~HostStagingBackend();
  HostStagingBackend(const HostStagingBackend&) = delete;
  HostStagingBackend& operator=(const HostStagingBackend&) = delete;

  // Takes an operation over: copies its inputs to the host after what the caller's stream held when it was begun.
  // `why` is what keeps the ranks from NCCL; logged once. An error, such as that of an earlier Abort, has been passed
  // to the task's callback.
  void Start(const DeviceCommunicator::TaskPtr& task, const Status& why);
  // Makes `stream` wait for the ticket's operation; nothing if that is complete or not here.
  std::optional<Status> Join(uint64_t ticket, CUstream stream) const;
  // True if that operation and those before it are complete.
  bool Complete(uint64_t ticket) const;
  // Hands to the engine what has arrived on the host, forgets what is complete, gives up what takes too long.
  void Poll();
  // True if Poll has something to look at.
  bool busy() const;
  bool empty() const;
  // Gives up what is still on its way to the host, and what comes later: nothing may look after it any longer.
  void Abort(const Status& status);

 private:
  struct Flight;
  using FlightPtr = std::shared_ptr<Flight>;
  struct Block {
    std::byte* memory = nullptr;
    size_t size = 0;
  };

  bool CopiesEnd() TFC_REQUIRES(mutex_);
  Status CopyToHost(Flight* flight) TFC_REQUIRES(mutex_);
  Status Reserve(Flight* flight, size_t bytes) TFC_REQUIRES(mutex_);
  void Submit(const FlightPtr& flight);
  void OnReduced(const FlightPtr& flight, const Status& status);
  Status CopyBack(Flight* flight) TFC_REQUIRES(mutex_);
  void End(const FlightPtr& flight, const Status& status);
  void Lose(Flight* flight) TFC_REQUIRES(mutex_);
  void Forget(const FlightPtr& flight);
  void Complain(const Flight& flight, const Status& status);

  Engine* const engine_;
  const Log log_;
  const std::function<void()> changed_;
  mutable Mutex mutex_;
  std::map<uint64_t, FlightPtr> flights_ TFC_GUARDED_BY(mutex_);  // by ticket
  std::shared_ptr<Gpu> gpu_ TFC_GUARDED_BY(mutex_);
  CUstream stream_ TFC_GUARDED_BY(mutex_) = nullptr;
  std::vector<Block> free_ TFC_GUARDED_BY(mutex_);
  std::vector<Block> lost_ TFC_GUARDED_BY(mutex_);  // of operations that failed: the GPU may still read or write it
  bool reported_ TFC_GUARDED_BY(mutex_) = false;
  Status aborted_ TFC_GUARDED_BY(mutex_);
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_HOST_STAGING_H_
