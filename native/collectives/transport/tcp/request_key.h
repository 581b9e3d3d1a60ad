// The key that distinguishes the messages between two ranks.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REQUEST_KEY_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REQUEST_KEY_H_

#include <cstddef>
#include <cstdint>

#include "collectives/transport/frame.h"
#include "collectives/transport/transport.h"

namespace tfc {

struct RequestKey {
  uint32_t channel;
  uint32_t step;
  uint64_t sequence;
  bool operator==(const RequestKey& other) const {
    return channel == other.channel && step == other.step && sequence == other.sequence;
  }
};

inline RequestKey KeyOf(const Tag& tag) { return RequestKey{tag.channel, tag.step, tag.sequence}; }
inline RequestKey KeyOf(const FrameHeader& header) { return RequestKey{header.channel, header.step, header.sequence}; }

struct RequestKeyHash {
  size_t operator()(const RequestKey& key) const {
    uint64_t mixed = key.sequence * 0x9e3779b97f4a7c15 ^ (uint64_t{key.channel} << 32 | key.step);
    mixed *= 0xff51afd7ed558ccd;
    return static_cast<size_t>(mixed ^ (mixed >> 32));
  }
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REQUEST_KEY_H_
