// All-reduce of 16-bit floats by the algorithms for float32.
#include <algorithm>
#include <memory>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

constexpr size_t kBlock = 1024 * 1024;  // elements: scratch is 4 MiB of float32

}  // namespace

Status WideAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                     const MutableSpans& output) {
  const size_t in = reduction.input_size(), out = reduction.output_size();
  const SpanIndex<ConstSpan> from(input);
  const SpanIndex<MutableSpan> to(output);
  const size_t total = to.size() / out;
  const size_t blocks = total == 0 ? 1 : (total + kBlock - 1) / kBlock;  // all members take part in an empty one, too
  const std::unique_ptr<float[]> scratch(new float[std::min(total, kBlock)]);
  for (size_t number = 0; number < blocks; ++number) {
    const size_t begin = number * kBlock, end = std::min(begin + kBlock, total);
    const MutableSpans wide{{reinterpret_cast<std::byte*>(scratch.get()), (end - begin) * sizeof(float)}};
    TransportContext block = context;
    block.first_step += static_cast<uint32_t>(number) * kStepsOfABlock;
    ConvertSpans(reduction.ToWide(), from.Slice(begin * in, end * in), wide);
    TFC_RETURN_IF_ERROR(TransportAllReduce(block, reduction.OfWide(), AsConst(wide), wide));
    ConvertSpans(reduction.FromWide(), AsConst(wide), to.Slice(begin * out, end * out));
  }
  return Status::Ok();
}

}  // namespace tfc
