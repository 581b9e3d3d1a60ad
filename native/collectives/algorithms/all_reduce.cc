#include "collectives/algorithms/select.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

Status HalfAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                     const MutableSpans& output) {
  const size_t count = TotalSize(output) / reduction.output_size();
  return SelectDirect(count, reduction.input_size(), context.members.size(), context.link)
             ? DirectAllReduce(context, reduction, input, output)
             : WideAllReduce(context, reduction, input, output);
}

}  // namespace

Status TransportAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                          const MutableSpans& output) {
  if (IsHalf(reduction.dtype)) return HalfAllReduce(context, reduction, input, output);
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

Status TransportReduceScatter(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                              const std::vector<size_t>& offsets, const MutableSpans& output) {
  return IsHalf(reduction.dtype) ? DirectReduceScatter(context, reduction, input, offsets, output)
                                 : RingReduceScatter(context, reduction, input, offsets, output);
}

}  // namespace tfc
