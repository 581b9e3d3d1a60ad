// Runs operations on one kind of memory: the scheduler on the host's, NCCL on GPUs'.
//
// The engine decides for all devices alike when the turn of an operation has come, watches what is under way, and finds
// the first cause of a failure. A device runs what it is given, and tells the engine what is complete.
#ifndef TFCOLLECTIVE_DEVICE_DEVICE_H_
#define TFCOLLECTIVE_DEVICE_DEVICE_H_

#include <cstdint>
#include <memory>

#include "agreement/negotiation.h"
#include "base/status.h"

namespace tfc {

class Plan;  // the engine's

class Device {
 public:
  virtual ~Device() = default;

  // Buckets of the plan wait, and the ranks have agreed on it: runs on `channel` those whose turn has come. Without a
  // channel (kNoPlanChannel) each bucket is an operation of its own, which the ranks match by name. Any thread.
  virtual void Enqueue(const std::shared_ptr<Plan>& plan, uint32_t channel) = 0;
  // The ranks have decided about an operation that this device asked for. Monitor thread; must not block.
  virtual void Decide(const Decision& decision) = 0;
  // A rank has left: PEER_LOST if something that the ranks have not agreed on waits for it. Monitor thread.
  virtual Status CheckDepartures() = 0;
  // The engine has failed: ends what is under way. Any thread; must not block.
  virtual void Fail(const Status& status) = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_DEVICE_H_
