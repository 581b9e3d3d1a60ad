// The host's memory as a device of the engine: operations run on the scheduler's channels.
#ifndef TFCOLLECTIVE_EXECUTOR_HOST_DEVICE_H_
#define TFCOLLECTIVE_EXECUTOR_HOST_DEVICE_H_

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "executor/engine.h"

namespace tfc {

class Engine::HostDevice final : public Device {
 public:
  explicit HostDevice(Engine* engine) : engine_(*engine) {}

  void Enqueue(const std::shared_ptr<Plan>& plan, uint32_t channel) override;
  void Decide(const Decision& decision) override;
  // The engine itself watches what runs in the host's memory, and holds what the ranks have not agreed on.
  Status CheckDepartures() override { return Status::Ok(); }
  void Fail(const Status& status) override;

 private:
  void Negotiate(const std::shared_ptr<Plan>& plan);

  Engine& engine_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_HOST_DEVICE_H_
