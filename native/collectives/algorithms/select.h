// Selects the algorithm: a pure table over values that are equal on all ranks.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_SELECT_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_SELECT_H_

#include <cstddef>

#include "collectives/algorithms/link.h"

namespace tfc {

enum class Algorithm {
  kAlone,         // a world of one: copy or scale
  kArena,         // one node: shared memory
  kHierarchical,  // several nodes, some with several ranks: shared memory inside, shards between
  kFlat,          // transport only
};

// Everything that the choice depends on besides the buffer's size.
struct Layout {
  int size = 1;
  int nodes = 1;
  int min_local_size = 1;  // over the nodes
  int max_local_size = 1;
  bool shared_memory = true;  // every rank has its node's arena
};

// All-reduce.
Algorithm SelectAllReduce(const Layout& layout);
// Every other collective: kAlone, kArena or kFlat.
Algorithm SelectOther(const Layout& layout);

// The number of local ranks of every node that talk to the other nodes in a hierarchical all-reduce: each of
// them carries an equal part, and a part should be worth its messages.
int SelectShards(size_t bytes, const Layout& layout);

enum class AllReduceShape { kRecursiveDoubling, kHalvingDoubling, kRing };
enum class BroadcastShape { kBinomial, kChain };

inline constexpr size_t kBroadcastSegment = 256 * 1024;

// Over a transport, `size` members. `link` must be equal on all of them.
AllReduceShape SelectAllReduceShape(size_t bytes, int size, const Link& link = Link());
// Of `count` 16-bit floats: whether each share goes straight to the member that adds it up, `input_size` bytes an
// element, rather than everything by way of float32.
bool SelectDirect(size_t count, size_t input_size, int size, const Link& link = Link());
BroadcastShape SelectBroadcastShape(size_t bytes, int size);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_SELECT_H_
