#include "algorithms/hierarchical.h"

#include "algorithms/pieces.h"
#include "algorithms/transport_algorithms.h"

namespace tfc {

std::vector<size_t> LaneOffsets(size_t bytes, size_t element, int lanes, int local_size) {
  std::vector<size_t> offsets = EvenOffsets(bytes, element, lanes);
  offsets.resize(static_cast<size_t>(local_size) + 1, bytes);
  return offsets;
}

Status HierarchicalAllReduce(const ArenaContext& arena, const TransportContext& lane, int lanes,
                             const Reduction& reduction, const ConstSpans& input, const MutableSpans& output) {
  const ArenaShape& node = arena.arena.shape();
  const std::vector<size_t> offsets = LaneOffsets(TotalSize(input), DtypeSize(reduction.dtype), lanes, node.local_size);
  const auto index = static_cast<size_t>(node.local_rank);
  const MutableSpans own = Slice(output, offsets[index], offsets[index + 1]);
  TFC_RETURN_IF_ERROR(ArenaReduceScatter(arena, reduction.OnlyPrescale(), input, offsets, own));
  if (node.local_rank < lanes) {
    TFC_RETURN_IF_ERROR(TransportAllReduce(lane, reduction.OnlyFinish(), AsConst(own), own));
  }
  return ArenaAllGather(arena, AsConst(own), offsets, output);
}

}  // namespace tfc
