// What precedes every message on a connection.
#ifndef TFCOLLECTIVE_TRANSPORT_FRAME_H_
#define TFCOLLECTIVE_TRANSPORT_FRAME_H_

#include <cstdint>

namespace tfc {

// "TFCm" in memory. Integers travel in the sender's byte order; a peer with another one is refused
// in the handshake, whose magic it cannot match.
inline constexpr uint32_t kFrameMagic = 0x6d434654;

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t channel = 0;
  uint32_t step = 0;
  uint32_t reserved = 0;  // zero
  uint64_t sequence = 0;
  uint64_t signature = 0;
  uint64_t generation = 0;
  uint64_t length = 0;  // bytes of payload that follow
};
static_assert(sizeof(FrameHeader) == 48, "the frame header has no padding");

}  // namespace tfc

#endif  // TFCOLLECTIVE_TRANSPORT_FRAME_H_
