// The assignment of channels; equal on all ranks.
#ifndef TFCOLLECTIVE_EXECUTOR_CHANNELS_H_
#define TFCOLLECTIVE_EXECUTOR_CHANNELS_H_

#include <cstdint>

#include "collectives/shm/arena.h"

namespace tfc {

inline constexpr uint32_t kInlineChannel = 0;      // direct calls on the caller's thread: see Arena::Sleeper
inline constexpr uint32_t kNegotiatedChannel = 1;  // operations that are matched by name
inline constexpr uint32_t kDirectChannel = 2;      // direct calls on the progress thread
inline constexpr uint32_t kFirstPlanChannel = 3;   // from here on one for each bucket plan
inline constexpr uint32_t kMaxPlans = ArenaShape{}.channels - kFirstPlanChannel;
inline constexpr uint32_t kProbeChannel = kFirstPlanChannel + kMaxPlans;  // once, over the transport only

// One for each bucket plan on GPUs: there it is a stream and an NCCL communicator, which take blocks and memory of the
// GPU: see MaxBlocks.
inline constexpr uint32_t kFirstGpuPlanChannel = kProbeChannel + 1;
inline constexpr uint32_t kMaxGpuPlans = 2;

inline constexpr bool IsPlanChannel(uint32_t channel) {
  return channel >= kFirstPlanChannel && channel < kFirstPlanChannel + kMaxPlans;
}
inline constexpr bool IsGpuPlanChannel(uint32_t channel) {
  return channel >= kFirstGpuPlanChannel && channel < kFirstGpuPlanChannel + kMaxGpuPlans;
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_CHANNELS_H_
