#include "collectives/algorithms/hierarchical.h"

#include <algorithm>
#include <memory>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {

std::vector<size_t> ShardOffsets(size_t bytes, size_t element, int shards, int local_size) {
  std::vector<size_t> offsets = EvenOffsets(bytes, element, shards);
  offsets.resize(static_cast<size_t>(local_size) + 1, bytes);
  return offsets;
}

namespace {

constexpr size_t kBlock = 1024 * 1024;  // elements of a shard: scratch is 4 MiB of float32

// What a node has added up of 16-bit floats goes to the other nodes as float32: it would be rounded once for each
// node. Block by block, as it has no place of its own.
class WideShards {
 public:
  WideShards(const ArenaContext& arena, const TransportContext& shard, int shards, const Reduction& reduction,
             const ConstSpans& input, const MutableSpans& output)
      : arena_(arena),
        shard_(shard),
        shards_(shards),
        reduction_(reduction),
        element_(DtypeSize(reduction.dtype)),
        input_(input),
        output_(output),
        total_(input_.size() / element_),
        block_(std::min(total_, kBlock * static_cast<size_t>(shards))),
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
    const std::vector<size_t> offsets = ShardOffsets(bytes, element_, shards_, node.local_size);
    const auto index = static_cast<size_t>(node.local_rank);
    const MutableSpans own = Slice(output, offsets[index], offsets[index + 1]);
    const MutableSpans sums{
        {reinterpret_cast<std::byte*>(sums_.get()), TotalSize(own) / element_ * reduction_.ToWide().output_size()}};
    TFC_RETURN_IF_ERROR(ArenaReduceScatter(arena_, reduction_.ToWide(), input, offsets, sums));
    if (node.local_rank < shards_) {
      TransportContext shard = shard_;
      shard.first_step += number * kStepsOfABlock;
      Reduction rest = reduction_.OnlyFinish();
      rest.wide_input = true;
      TFC_RETURN_IF_ERROR(TransportAllReduce(shard, rest, AsConst(sums), own));
    }
    return ArenaAllGather(arena_, AsConst(own), offsets, output);
  }

  const ArenaContext& arena_;
  const TransportContext& shard_;
  const int shards_;
  const Reduction& reduction_;
  const size_t element_;
  const SpanIndex<ConstSpan> input_;
  const SpanIndex<MutableSpan> output_;
  const size_t total_;
  const size_t block_;  // elements
  const std::unique_ptr<float[]> sums_;
};

}  // namespace

Status HierarchicalAllReduce(const ArenaContext& arena, const TransportContext& shard, int shards,
                             const Reduction& reduction, const ConstSpans& input, const MutableSpans& output) {
  if (IsHalf(reduction.dtype)) return WideShards(arena, shard, shards, reduction, input, output).Run();
  const ArenaShape& node = arena.arena.shape();
  const std::vector<size_t> offsets =
      ShardOffsets(TotalSize(input), DtypeSize(reduction.dtype), shards, node.local_size);
  const auto index = static_cast<size_t>(node.local_rank);
  const MutableSpans own = Slice(output, offsets[index], offsets[index + 1]);
  TFC_RETURN_IF_ERROR(ArenaReduceScatter(arena, reduction.OnlyPrescale(), input, offsets, own));
  if (node.local_rank < shards) {
    TFC_RETURN_IF_ERROR(TransportAllReduce(shard, reduction.OnlyFinish(), AsConst(own), own));
  }
  return ArenaAllGather(arena, AsConst(own), offsets, output);
}

}  // namespace tfc
