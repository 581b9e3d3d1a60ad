// Collectives inside one node, over its arena. Peers' memory is read directly.
//
// Buffers as in transport_algorithms.h; indices are local ranks. Results are bitwise equal on all
// ranks: contributions are combined in local rank order, 16-bit floats in float32 and rounded once.
//
// All ranks must agree on everything that their signatures stand for: lengths, offsets, root. Every
// operation begins with one round in which each rank waits for all others and compares signatures,
// before any byte is used; an operation on no bytes only says that it took place, and waits for
// no rank.
//
// Errors: MISMATCH with the first rank that runs something else; DEADLINE_EXCEEDED with the first
// rank that is missing, all of them in the text; whatever the arena was interrupted with;
// INVALID_ARGUMENT when a buffer has another size than the arguments say. After an error the channel
// is out of step for good.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_ALGORITHMS_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_ALGORITHMS_H_

#include <vector>

#include "base/deadline.h"
#include "base/span.h"
#include "base/status.h"
#include "collectives/reduce/reduction.h"
#include "collectives/shm/arena.h"

namespace tfc {

// One operation on one channel. `round` is the channel's running number of staging rounds: kept by
// the caller between operations, equal on all local ranks.
struct ArenaContext {
  Arena& arena;
  Waiter& waiter;
  Deadline deadline;
  uint32_t channel = 0;
  uint64_t* round = nullptr;
  uint64_t sequence = 0;   // of the operation in its channel
  uint64_t signature = 0;  // hash of what the operation is; a peer with another one is a MISMATCH
  const std::vector<int>* world_ranks = nullptr;  // what errors call the local ranks; nullptr: by their local rank

  int WorldRank(int local_rank) const {
    return world_ranks == nullptr ? local_rank : (*world_ranks)[static_cast<size_t>(local_rank)];
  }
};

// The local ranks for whom the operation that ended with DEADLINE_EXCEEDED waits.
std::vector<int> MissingLocalRanks(const ArenaContext& context);

// One-shot (stage, then every rank combines everything) for small buffers and for two ranks;
// two-phase (stage, combine own slice, collect) else.
Status ArenaAllReduce(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                      const MutableSpans& output);
// As ArenaAllReduce, of `count` (not 0) elements in one piece of memory each, checked by the caller: a few bytes take
// less time than looking at them again.
Status ArenaAllReduceChecked(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                             const MutableSpans& output, size_t count);
// Local rank i gets bytes [offsets[i], offsets[i+1]) of the reduced input. `output` may be that part
// of the input, unless it is wide: then it has as many elements.
Status ArenaReduceScatter(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                          const std::vector<size_t>& offsets, const MutableSpans& output);
// Local rank i's input lands at bytes [offsets[i], offsets[i+1]) of everyone's output. Its own part
// may be in place already.
Status ArenaAllGather(const ArenaContext& context, const ConstSpans& input, const std::vector<size_t>& offsets,
                      const MutableSpans& output);
Status ArenaBroadcast(const ArenaContext& context, int root, const ConstSpans& input, const MutableSpans& output);
// sizes[from * local_size + to]: bytes that `from` sends to `to`; the same matrix on all ranks.
Status ArenaAllToAll(const ArenaContext& context, const std::vector<size_t>& sizes, const ConstSpans& input,
                     const MutableSpans& output);
Status ArenaBarrier(const ArenaContext& context);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_ALGORITHMS_H_
