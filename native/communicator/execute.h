// Runs one operation on one channel: chooses the algorithm and calls it. No thread, no state beyond
// the channel's counters.
#ifndef TFCOLLECTIVE_COMMUNICATOR_EXECUTE_H_
#define TFCOLLECTIVE_COMMUNICATOR_EXECUTE_H_

#include <cstdint>

#include "base/deadline.h"
#include "base/status.h"
#include "collectives/algorithms/link.h"
#include "collectives/shm/arena.h"
#include "collectives/transport/transport.h"
#include "communicator/operation.h"
#include "communicator/topology.h"

namespace tfc {

// The counters of one independent stream of operations; equal on all ranks.
struct Channel {
  uint32_t index = 0;
  uint64_t sequence = 0;  // operations begun
  uint64_t round = 0;     // staging rounds used in the arena
};

// The resources that the calling thread may use. Without an arena everything goes over the transport; with one and
// a single node the transport is not touched and may be nullptr.
struct Resources {
  Transport* transport = nullptr;
  Arena* arena = nullptr;
  Waiter* waiter = nullptr;
  Link link = {};  // of the transport; equal on all ranks
};

// Blocks until this rank's part is done. Counts the operation on the channel whatever comes of it.
Status Execute(const Topology& topology, const Operation& operation, const Resources& resources, Deadline deadline,
               Channel* channel);

// An operation that is run again and again: checked, with what does not change from call to call.
struct Prepared {
  // `operation` must have passed its Check.
  Prepared(Operation checked, int size);

  Operation operation;
  const Reduction reduction;
  const uint64_t signature;
  const size_t elements;  // of an all-reduce of one piece of memory, else 0
};

// As Execute, in a world of one or over the arena only.
Status ExecutePrepared(const Topology& topology, const Prepared& prepared, const Resources& resources,
                       Deadline deadline, Channel* channel);

// Measures the transport between the nodes (between the ranks, where they share no memory) and agrees with all ranks on
// what came out. Counts as an operation on the channel.
Result<Link> ProbeLink(const Topology& topology, const Resources& resources, Deadline deadline, Channel* channel);

// True if Execute would use the arena only.
bool UsesArenaOnly(const Topology& topology, const Resources& resources);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COMMUNICATOR_EXECUTE_H_
