// The header of every message on a connection, and the frames with which its two ends grant each other room.
//
// A message leaves at once while it fits into the room that its receiver keeps for messages without a
// posted receive; see tcp/room.h. One that does not fit is announced and sent when its receive is
// posted. Nothing is said to a rank that does not wait for it: a rank may close its connections as
// soon as its requests are done, and bytes that reach a closed connection destroy what it has sent.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_FRAME_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_FRAME_H_

#include <cstdint>

namespace tfc {

// "TFCn" in memory. Integers travel in the sender's byte order; a peer with another one is refused
// in the handshake, whose magic it cannot match.
inline constexpr uint32_t kFrameMagic = 0x6e434654;

enum class FrameKind : uint32_t {
  kEager = 0,     // a message, inside the receiver's room
  kAsking = 1,    // the same; the send is done when the answer has come
  kAnswer = 2,    // no payload: the asking message of this tag has arrived
  kAnnounce = 3,  // no payload: a message of this tag and length waits for room
  kGrant = 4,     // no payload: the receive of the announced message is posted
  kGranted = 5,   // the announced message
};
inline constexpr FrameKind kLastFrameKind = FrameKind::kGranted;

inline constexpr bool HasPayload(FrameKind kind) {
  return kind == FrameKind::kEager || kind == FrameKind::kAsking || kind == FrameKind::kGranted;
}

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t channel = 0;
  uint32_t step = 0;
  FrameKind kind = FrameKind::kEager;
  uint64_t sequence = 0;
  uint64_t signature = 0;
  uint64_t generation = 0;
  uint64_t length = 0;    // bytes of the message, also where it does not follow
  uint64_t returned = 0;  // bytes of the sender's room that are free again for the receiver of this frame
};
static_assert(sizeof(FrameHeader) == 56, "the frame header has no padding");

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_FRAME_H_
