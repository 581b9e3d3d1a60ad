// The layout of an arena's memory. Internal to shm/.
//
//   header | doorbells: one for each sleeper of each local rank | channels
//   channel: for each local rank its slots, each a line of flags and then the staged bytes
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_LAYOUT_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/shm/arena.h"

namespace tfc {

inline constexpr int kMaxLocalSize = 1024;
inline constexpr uint32_t kMaxChannels = 1u << 16;
inline constexpr size_t kPageSize = 4096;
inline constexpr size_t kLineSize = 64;
inline constexpr size_t kLinePairSize = 128;  // two lines, which the processor prefetches together

struct ArenaHeader {
  static constexpr uint64_t kMagic = 0x31616e6572616674;  // "tfarena1"
  uint64_t magic;
  uint32_t local_size;
  uint32_t channels;
  uint32_t slots;
  uint32_t segment_size;
  uint64_t total_size;
  uint64_t crowded;  // the one thing that the peers take over: any value will do
};

// A sleeper's word. `sleeping`: kAwake, kForAny, kInPoll (for any, and woken by its event descriptor instead of
// `bell`), or 1 + the local rank that it waits for. The process that sets it back to kAwake from outside rings and
// wakes.
struct alignas(kLinePairSize) Doorbell {
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kForAny = UINT32_MAX;
  static constexpr uint32_t kInPoll = UINT32_MAX - 1;
  std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
};

// Written by the rank that owns the slot only. Rounds are published as round + 1. What is staged for a
// tiny operation lies beside the flags: its peers then fetch one line instead of two.
struct alignas(kLineSize) SlotFlags {
  static constexpr size_t kTinySize = 32;
  std::atomic<uint64_t> staged;
  std::atomic<uint64_t> reduced;
  std::atomic<uint64_t> signature;
  alignas(kTinySize) std::byte tiny[kTinySize];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(SlotFlags) == kLineSize && sizeof(Doorbell) == kLinePairSize);

// Computed by each rank from the shape; what is read from the memory is only compared with it.
struct ArenaLayout {
  static constexpr size_t kSlots = 8;                 // of each local rank in each channel
  static constexpr size_t kSegmentSize = 128 * 1024;  // staged bytes of a slot

  explicit ArenaLayout(const ArenaShape& shape);

  size_t doorbell(Arena::Sleeper sleeper, int local_rank) const {
    const size_t index = static_cast<size_t>(sleeper) * ranks + static_cast<size_t>(local_rank);
    return kPageSize + index * sizeof(Doorbell);
  }
  size_t slot(uint32_t channel, int local_rank, size_t index) const {
    return first_channel + ((channel * ranks + static_cast<size_t>(local_rank)) * kSlots + index) * slot_stride;
  }

  size_t ranks;
  size_t slot_stride;
  size_t first_channel;
  size_t total_size;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_ARENA_LAYOUT_H_
