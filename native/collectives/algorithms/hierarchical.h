// All-reduce for several nodes with several ranks: shared memory inside a node, the transport between.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H_

#include <cstddef>
#include <vector>

#include "base/span.h"
#include "base/status.h"
#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/context.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

// Reduce-scatter over the arena, all-reduce of `shards` equal parts between the nodes, all-gather over
// the arena. Shard i is made of the i-th local rank of every node; local ranks from `shards` on only
// take part inside their node. `shards` is equal on all ranks and at most the smallest node's number
// of ranks, so nodes of different sizes work. `shard.members` is this rank's shard and is not looked at
// where the local rank has none. `reduction.divisor` counts the ranks of all nodes.
Status HierarchicalAllReduce(const ArenaContext& arena, const TransportContext& shard, int shards,
                             const Reduction& reduction, const ConstSpans& input, const MutableSpans& output);

// The offsets of the shards' parts of `bytes` bytes: local_size + 1 entries. Pure.
std::vector<size_t> ShardOffsets(size_t bytes, size_t element, int shards, int local_size);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H_
