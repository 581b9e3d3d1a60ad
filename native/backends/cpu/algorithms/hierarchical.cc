#include "backends/cpu/algorithms/hierarchical.h"

#include <algorithm>
#include <memory>

#include "backends/cpu/algorithms/pieces.h"
#include "backends/cpu/algorithms/transport_algorithms.h"

namespace tfc {

std::vector<size_t> LaneOffsets(size_t bytes, size_t element, int lanes, int local_size) {
  std::vector<size_t> offsets = EvenOffsets(bytes, element, lanes);
  offsets.resize(static_cast<size_t>(local_size) + 1, bytes);
  return offsets;
}

namespace {

constexpr size_t kBlock = 1024 * 1024;  // elements of a lane: scratch is 4 MiB of float32

// What a node has added up of 16-bit floats goes to the other nodes as float32: it would be rounded once for each
// node. Block by block, as it has no place of its own.
class WideLanes {
 public:
  WideLanes(const ArenaContext& arena, const TransportContext& lane, int lanes, const Reduction& reduction,
            const ConstSpans& input, const MutableSpans& output)
      : arena_(arena),
        lane_(lane),
        lanes_(lanes),
        reduction_(reduction),
        element_(DtypeSize(reduction.dtype)),
        input_(input),
        output_(output),
        total_(input_.size() / element_),
        block_(std::min(total_, kBlock * static_cast<size_t>(lanes))),
        sums_(new float[std::min(block_, kBlock)]) {}

  Status Run() {
    const size_t blocks =
        total_ == 0 ? 1 : (total_ + block_ - 1) / block_;  // all members take part in an empty one, too
    for (size_t number = 0; number < blocks; ++number) {
      const size_t begin = number * block_ * element_, end = std::min((number + 1) * block_, total_) * element_;
      TFC_RETURN_IF_ERROR(
          Block(static_cast<uint32_t>(number), input_.Slice(begin, end), output_.Slice(begin, end), end - begin));
    }
    return Status::Ok();
  }

 private:
  Status Block(uint32_t number, const ConstSpans& input, const MutableSpans& output, size_t bytes) {
    const ArenaShape& node = arena_.arena.shape();
    const std::vector<size_t> offsets = LaneOffsets(bytes, element_, lanes_, node.local_size);
    const auto index = static_cast<size_t>(node.local_rank);
    const MutableSpans own = Slice(output, offsets[index], offsets[index + 1]);
    const MutableSpans sums{
        {reinterpret_cast<std::byte*>(sums_.get()), TotalSize(own) / element_ * reduction_.ToWide().output_size()}};
    TFC_RETURN_IF_ERROR(ArenaReduceScatter(arena_, reduction_.ToWide(), input, offsets, sums));
    if (node.local_rank < lanes_) {
      TransportContext lane = lane_;
      lane.first_step += number * kStepsOfABlock;
      Reduction rest = reduction_.OnlyFinish();
      rest.wide_input = true;
      TFC_RETURN_IF_ERROR(TransportAllReduce(lane, rest, AsConst(sums), own));
    }
    return ArenaAllGather(arena_, AsConst(own), offsets, output);
  }

  const ArenaContext& arena_;
  const TransportContext& lane_;
  const int lanes_;
  const Reduction& reduction_;
  const size_t element_;
  const SpanIndex<ConstSpan> input_;
  const SpanIndex<MutableSpan> output_;
  const size_t total_;
  const size_t block_;  // elements
  const std::unique_ptr<float[]> sums_;
};

}  // namespace

Status HierarchicalAllReduce(const ArenaContext& arena, const TransportContext& lane, int lanes,
                             const Reduction& reduction, const ConstSpans& input, const MutableSpans& output) {
  if (IsHalf(reduction.dtype)) return WideLanes(arena, lane, lanes, reduction, input, output).Run();
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
