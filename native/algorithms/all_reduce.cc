#include "algorithms/select.h"
#include "algorithms/transport_algorithms.h"

namespace tfc {

Status TransportAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                          const MutableSpans& output) {
  const bool ring = SelectAllReduceShape(TotalSize(input), context.members.size()) == AllReduceShape::kRing;
  return ring ? RingAllReduce(context, reduction, input, output)
              : RecursiveDoublingAllReduce(context, reduction, input, output);
}

}  // namespace tfc
