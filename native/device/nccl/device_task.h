// One operation on its way through a DeviceCommunicator.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_DEVICE_TASK_H_
#define TFCOLLECTIVE_DEVICE_NCCL_DEVICE_TASK_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/nccl/device_communicator.h"

namespace tfc {

// Guarded by the communicator's mutex, but for what is set before others see it.
struct DeviceCommunicator::Task {
  explicit Task(std::shared_ptr<Gpu> on) : gpu(std::move(on)) {}
  // A thread that may still let a stream wait for the events holds the task.
  ~Task() {
    for (CUevent event : {before, after})
      if (event != nullptr) gpu->GiveBack(event);
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Launched (Ok) or given up; what to call, once, without the mutex.
  Done End(const Status& status) {
    if (ended) return nullptr;
    ended = true;
    outcome = status;
    return std::exchange(launched, nullptr);
  }

  const std::shared_ptr<Gpu> gpu;
  CUevent before = nullptr;  // the caller's stream has come to the operation
  CUevent after = nullptr;   // the operation is complete
  Operation operation;
  uint64_t ticket = 0;
  Deadline::Clock::time_point began{};
  Deadline deadline = Deadline::After(0);
  Done launched;
  std::vector<int64_t> rows;
  std::shared_ptr<Plan> plan;         // of a bucket whose turn has come, unless this is a world of one
  bool awaits_turn = false;           // of a bucket: in its plan
  uint32_t channel = kNoPlanChannel;  // the plan's, which it has come to
  uint64_t sequence = 0;              // its number there; the NCCL thread's, as `reported`
  std::optional<Deadline::Clock::time_point> reported;  // as late: the arbiter finds out which rank is missing
  bool through_host = false;                            // rather than not at all
  bool agreed = false;
  bool ended = false;
  Status outcome;
  bool warned = false;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_DEVICE_TASK_H_
