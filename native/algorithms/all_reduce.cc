#include "algorithms/select.h"
#include "algorithms/transport_algorithms.h"

namespace tfc {

Status TransportAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                          const MutableSpans& output) {
  switch (SelectAllReduceShape(TotalSize(input), context.members.size(), context.link)) {
    case AllReduceShape::kRecursiveDoubling:
      return RecursiveDoublingAllReduce(context, reduction, input, output);
    case AllReduceShape::kHalvingDoubling:
      return HalvingDoublingAllReduce(context, reduction, input, output);
    case AllReduceShape::kRing:
      break;
  }
  return RingAllReduce(context, reduction, input, output);
}

}  // namespace tfc
