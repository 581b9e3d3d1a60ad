// The room that the two ends of a connection keep for each other's messages without a posted receive.
//
// Each end counts what it has sent into the peer's room, and what the peer has sent into its own. Room
// that is free again is returned with the next frame to the peer, whatever that frame is. The counts
// of the sender are never below those of the receiver, so a peer that follows the rules never sends
// more than fits, and a receiver never has to stop reading.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ROOM_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ROOM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "collectives/transport/frame.h"

namespace tfc {

class Room {
 public:
  // `bytes`: of each of the two rooms; the same on both ends.
  explicit Room(uint64_t bytes) : bytes_(bytes) {}

  // Sending: takes room at the peer for a message of that length; false if there is not enough.
  bool Take(uint64_t length) {
    const uint64_t left = bytes_ - taken_;
    // A part is left to small messages, which should not have to wait because large ones do.
    const uint64_t usable = length <= kSmallMessage ? left : left - std::min(left, bytes_ / kShareOfSmallMessages);
    if (length > usable || CostOf(length) > usable) return false;
    taken_ += CostOf(length);
    return true;
  }
  // So much is taken that the peer should be asked to return some.
  bool low() const { return taken_ > bytes_ / 2; }
  // Takes back the bytes that the peer has returned; false if they are more than were taken.
  bool Restore(uint64_t bytes) {
    if (bytes > taken_) return false;
    taken_ -= bytes;
    return true;
  }

  // Receiving: a message of that length has come; false if the peer has sent more than fits.
  bool Occupy(uint64_t length) {
    const uint64_t left = bytes_ - occupied_;
    if (length > left || CostOf(length) > left) return false;
    occupied_ += CostOf(length);
    return true;
  }
  // The message lies in its receive's memory, or will.
  void Free(uint64_t length) { freed_ += CostOf(length); }
  // The bytes that the next frame to the peer returns.
  uint64_t TakeFreed() {
    occupied_ -= freed_;
    return std::exchange(freed_, 0);
  }

 private:
  static constexpr uint64_t kSmallMessage = 64 << 10;
  static constexpr uint64_t kShareOfSmallMessages = 16;  // 1/16

  // Empty messages take memory, too.
  static uint64_t CostOf(uint64_t length) { return length + sizeof(FrameHeader); }

  const uint64_t bytes_;
  uint64_t taken_ = 0;     // at the peer
  uint64_t occupied_ = 0;  // here, by the peer
  uint64_t freed_ = 0;     // of occupied_: not returned yet
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ROOM_H_
