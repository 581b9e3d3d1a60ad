// Combining what the local ranks have staged. Internal to algorithms/.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_COMBINE_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_COMBINE_H_

#include <cstddef>
#include <cstdint>

#include "collectives/algorithms/span_cursor.h"
#include "collectives/algorithms/staging_rounds.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

// A part of every rank's slot of one round.
struct Lot {
  uint64_t round;
  size_t begin;
  size_t size;
};

// As CombineStaged, of the first `count` elements of round 0, with this rank's own part and the output in one piece
// each.
void CombineSlots(const StagingRounds& rounds, const Reduction& reduction, const std::byte* own, std::byte* output,
                  size_t count);

// output = the staged lots of all ranks, combined in rank order and finished. This rank's own part is
// read from `own` (it need not be staged). Both cursors move on by the lot's elements.
void CombineStaged(const StagingRounds& rounds, const Reduction& reduction, Lot lot, ConstCursor* own,
                   MutableCursor* output, bool stream);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_COMBINE_H_
