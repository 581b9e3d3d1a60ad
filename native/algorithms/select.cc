#include "algorithms/select.h"

#include <algorithm>

namespace tfc {
namespace {

// Bytes that a TCP connection moves in the time that one small message takes: latency x bandwidth.
constexpr double kLatencyBytes = 64 * 1024;
// Recursive doubling exchanges whole buffers, this much of them at a time.
constexpr size_t kLargestDoubling = 256 * 1024;
// A lane with less than this is not worth messages of its own.
constexpr size_t kSmallestLane = 16 * 1024;

int FloorLog2(int size) {
  int log = 0;
  while ((size >> (log + 1)) > 0) ++log;
  return log;
}

int CeilLog2(int size) { return FloorLog2(size) + ((size & (size - 1)) == 0 ? 0 : 1); }

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

int SelectLanes(size_t bytes, const Layout& layout) {
  const size_t worth = std::max<size_t>(1, bytes / kSmallestLane);
  return static_cast<int>(std::min(worth, static_cast<size_t>(layout.min_local_size)));
}

// Recursive doubling takes r messages of n bytes one after the other, the ring 2(p - 1) messages
// and 2(p - 1)/p n bytes: it is better while n (r - 2(p - 1)/p) < (2(p - 1) - r) x latency bytes.
AllReduceShape SelectAllReduceShape(size_t bytes, int size) {
  const bool folded = (size & (size - 1)) != 0;
  const double doubling_steps = FloorLog2(size) + (folded ? 2 : 0);
  const double ring_steps = 2.0 * (size - 1);
  const double extra_bytes = static_cast<double>(bytes) * (doubling_steps - ring_steps / size);
  const bool doubling = bytes <= kLargestDoubling && extra_bytes <= (ring_steps - doubling_steps) * kLatencyBytes;
  return doubling ? AllReduceShape::kRecursiveDoubling : AllReduceShape::kRing;
}

// The tree sends the whole buffer ceil(lg p) times, the chain sends s segments through p - 1 links.
BroadcastShape SelectBroadcastShape(size_t bytes, int size) {
  const size_t segments = (bytes + kBroadcastSegment - 1) / kBroadcastSegment;
  const size_t in_chain = segments + static_cast<size_t>(std::max(0, size - 2));
  const size_t in_tree = segments * static_cast<size_t>(CeilLog2(size));
  return segments > 1 && in_chain <= in_tree ? BroadcastShape::kChain : BroadcastShape::kBinomial;
}

}  // namespace tfc
