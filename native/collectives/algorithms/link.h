// The cost of a transport between the members of a world, for the choice of algorithms.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_LINK_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_LINK_H_

namespace tfc {

// Before anything was measured: a fast network, 64 KiB of which pass in the time of one small message.
struct Link {
  double latency_s = 1.0 / (1 << 15);          // from a small message's send to its receiver that goes on
  double seconds_per_byte = 1.0 / (1u << 31);  // of a large message
  bool measured = false;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_LINK_H_
