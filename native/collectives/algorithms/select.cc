#include "collectives/algorithms/select.h"

#include <algorithm>
#include <limits>

namespace tfc {
namespace {

// Adding up what has arrived. The ring hides it behind what is on the wire, the others do not.
constexpr double kCombineSecondsPerByte = 1e-10;
// Recursive doubling exchanges whole buffers, this much of them at a time.
constexpr size_t kLargestDoubling = 256 * 1024;
// The direct exchange connects every member to every other: beyond this many the algorithms with few neighbours.
constexpr int kMostDirect = 64;
constexpr size_t kHalfSize = 2;  // bytes
// A shard with less than this is not worth messages of its own.
constexpr size_t kSmallestShard = 16 * 1024;

int FloorLog2(int size) {
  int log = 0;
  while ((size >> (log + 1)) > 0) ++log;
  return log;
}

int CeilLog2(int size) { return FloorLog2(size) + ((size & (size - 1)) == 0 ? 0 : 1); }

// Seconds of an all-reduce by each algorithm.
struct Costs {
  double doubling;
  double halving;
  double ring;
};

// Of n bytes over p members: messages one after the other, bytes on the wire, bytes added up while nothing is on the
// wire (Thakur, Rabenseifner and Gropp 2005).
Costs CostsOf(size_t bytes, int size, const Link& link) {
  const auto n = static_cast<double>(bytes);
  const bool folded = (size & (size - 1)) != 0;
  const double part = (size - 1.0) / size;
  const auto cost = [&](double messages, double sent, double combined) {
    return messages * link.latency_s + sent * link.seconds_per_byte + combined * kCombineSecondsPerByte;
  };
  const double rounds = FloorLog2(size) + (folded ? 2 : 0);
  const double doubling =
      bytes <= kLargestDoubling ? cost(rounds, rounds * n, rounds * n) : std::numeric_limits<double>::infinity();
  const double halving = cost(2.0 * CeilLog2(size), 2 * part * n, (1 + part) * n);  // and one copy
  return {doubling, halving, cost(2.0 * (size - 1), 2 * part * n, 0)};
}

}  // namespace

Algorithm SelectAllReduce(const Layout& layout) {
  const Algorithm other = SelectOther(layout);
  const bool levels = layout.shared_memory && layout.nodes > 1 && layout.max_local_size > 1;
  return other == Algorithm::kFlat && levels ? Algorithm::kHierarchical : other;
}

Algorithm SelectOther(const Layout& layout) {
  if (layout.size == 1) return Algorithm::kAlone;
  return layout.shared_memory && layout.nodes == 1 ? Algorithm::kArena : Algorithm::kFlat;
}

int SelectShards(size_t bytes, const Layout& layout) {
  const size_t worth = std::max<size_t>(1, bytes / kSmallestShard);
  return static_cast<int>(std::min(worth, static_cast<size_t>(layout.min_local_size)));
}

AllReduceShape SelectAllReduceShape(size_t bytes, int size, const Link& link) {
  const Costs costs = CostsOf(bytes, size, link);
  if (costs.doubling <= std::min(costs.halving, costs.ring)) return AllReduceShape::kRecursiveDoubling;
  return costs.halving < costs.ring ? AllReduceShape::kHalvingDoubling : AllReduceShape::kRing;
}

// The direct exchange is given as many messages one after the other as the ring, though they are under way together:
// it is chosen where it wins for certain.
bool SelectDirect(size_t count, size_t input_size, int size, const Link& link) {
  if (size > kMostDirect) return false;
  const double messages = 2.0 * (size - 1), part = (size - 1.0) / size;
  const double bytes = static_cast<double>(count) * static_cast<double>(input_size + kHalfSize);
  const double direct = messages * link.latency_s + part * bytes * link.seconds_per_byte;
  const Costs wide = CostsOf(count * sizeof(float), size, link);
  return direct < std::min({wide.doubling, wide.halving, wide.ring});
}

// The tree sends the whole buffer ceil(lg p) times, the chain sends s segments through p - 1 links.
BroadcastShape SelectBroadcastShape(size_t bytes, int size) {
  const size_t segments = (bytes + kBroadcastSegment - 1) / kBroadcastSegment;
  const size_t in_chain = segments + static_cast<size_t>(std::max(0, size - 2));
  const size_t in_tree = segments * static_cast<size_t>(CeilLog2(size));
  return segments > 1 && in_chain <= in_tree ? BroadcastShape::kChain : BroadcastShape::kBinomial;
}

}  // namespace tfc
