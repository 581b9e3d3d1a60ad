// The context of every collective algorithm over a transport: its members and its operation.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_CONTEXT_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_CONTEXT_H_

#include <cstdint>
#include <vector>

#include "base/deadline.h"
#include "collectives/algorithms/link.h"
#include "collectives/transport/transport.h"

namespace tfc {

// The ranks that take part, in the order of the algorithm, and this rank's place among them.
struct Members {
  std::vector<int> ranks;
  int index = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

// Where an algorithm runs again and again in one operation, block by block, a block has these steps to itself.
inline constexpr uint32_t kStepsOfABlock = 1u << 18;

struct TransportContext {
  Transport& transport;
  const Members& members;
  Deadline deadline;
  uint32_t channel = 0;
  uint64_t sequence = 0;
  uint64_t signature = 0;
  uint32_t first_step = 0;  // a composition gives each part its own range of steps
  Link link = {};           // equal on all ranks

  Tag TagOf(uint32_t step) const { return Tag{channel, first_step + step, sequence, signature}; }
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_CONTEXT_H_
