#include "communicator/execute.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/hierarchical.h"
#include "collectives/algorithms/link_probe.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/select.h"
#include "collectives/algorithms/transport_algorithms.h"
#include "collectives/reduce/integers.h"

namespace tfc {
namespace {

// An operation with sizes that only the peers know has two parts: the sizes, then the data.
constexpr uint32_t kDataStep = 1u << 20;

constexpr size_t kAverageBlock = 64 * 1024;  // elements: scratch is at most 1 MiB

// Everything that one run needs, so that the functions below take one argument.
struct Run {
  const Topology& topology;
  const Operation& operation;
  const Resources& resources;
  Deadline deadline;
  Channel* channel;
  uint64_t sequence;
  uint64_t signature;
  Reduction reduction;

  int size() const { return topology.size; }
  bool arena_only() const { return UsesArenaOnly(topology, resources); }
};

Layout LayoutOf(const Topology& topology, const Resources& resources) {
  Layout layout;
  layout.size = topology.size;
  layout.nodes = topology.nodes();
  layout.min_local_size = topology.size;
  for (const auto& ranks : topology.node_ranks) {
    layout.min_local_size = std::min(layout.min_local_size, static_cast<int>(ranks.size()));
    layout.max_local_size = std::max(layout.max_local_size, static_cast<int>(ranks.size()));
  }
  layout.shared_memory = resources.arena != nullptr;
  return layout;
}

Members WorldMembers(const Topology& topology) {
  Members members;
  for (int rank = 0; rank < topology.size; ++rank) members.ranks.push_back(rank);
  members.index = topology.rank;
  return members;
}

TransportContext OverTransport(const Run& run, const Members& members, uint32_t first_step = 0) {
  return TransportContext{
      *run.resources.transport, members, run.deadline, run.channel->index, run.sequence, run.signature, first_step,
      run.resources.link};
}

ArenaContext OverArena(const Run& run) {
  return ArenaContext{*run.resources.arena, *run.resources.waiter, run.deadline,  run.channel->index,
                      &run.channel->round,  run.sequence,          run.signature, &run.topology.local_ranks};
}

Status AllGatherBytes(const Run& run, const ConstSpans& input, const std::vector<size_t>& offsets,
                      const MutableSpans& output, uint32_t first_step) {
  if (run.arena_only()) return ArenaAllGather(OverArena(run), input, offsets, output);
  const Members members = WorldMembers(run.topology);
  return RingAllGather(OverTransport(run, members, first_step), input, offsets, output);
}

// Every rank's `mine`, in rank order.
Result<std::vector<int64_t>> ExchangeNumbers(const Run& run, const std::vector<int64_t>& mine) {
  const size_t bytes = mine.size() * sizeof(int64_t);
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(run.size()));
  std::vector<size_t> offsets;
  for (int rank = 0; rank <= run.size(); ++rank) offsets.push_back(static_cast<size_t>(rank) * bytes);
  const ConstSpans input{{reinterpret_cast<const std::byte*>(mine.data()), bytes}};
  const MutableSpans output{{reinterpret_cast<std::byte*>(all.data()), all.size() * sizeof(int64_t)}};
  TFC_RETURN_IF_ERROR(AllGatherBytes(run, input, offsets, output, 0));
  return all;
}

// Where each rank's rows begin in the concatenation, in bytes. Row numbers come from the peers, so
// they are checked before they are used.
Result<std::vector<size_t>> RowOffsets(const std::vector<int64_t>& rows, size_t row_bytes) {
  std::vector<size_t> offsets{0};
  for (int64_t count : rows) {
    const auto limit = static_cast<size_t>(std::numeric_limits<int64_t>::max()) - offsets.back();
    if (count < 0 || (row_bytes != 0 && static_cast<size_t>(count) > limit / row_bytes))
      return Status(Code::kProtocol, "a peer announced " + std::to_string(count) + " rows");
    offsets.push_back(offsets.back() + static_cast<size_t>(count) * row_bytes);
  }
  return offsets;
}

Result<MutableSpans> AllocateOutput(const Operation& operation, const std::vector<int64_t>& rows, size_t bytes) {
  std::byte* memory = operation.allocate(rows);
  if (memory == nullptr && bytes != 0)
    return Status(Code::kResourceExhausted, "no memory for a result of " + std::to_string(bytes) + " bytes");
  return MutableSpans{{memory, bytes}};
}

// What is reduced, with the first of its steps over the transport.
struct AllReduceOf {
  const Reduction& reduction;
  const ConstSpans& input;
  const MutableSpans& output;
  uint32_t first_step = 0;
};

Status Hierarchical(const Run& run, const AllReduceOf& what) {
  const int shards = SelectShards(TotalSize(what.input), LayoutOf(run.topology, run.resources));
  Members members;  // the ranks with this local rank, one a node; not looked at beyond the shards
  members.ranks = run.topology.cross_ranks;
  members.index = run.topology.cross_rank;
  return HierarchicalAllReduce(OverArena(run), OverTransport(run, members, what.first_step), shards, what.reduction,
                               what.input, what.output);
}

Status AllReduce(const Run& run, const AllReduceOf& what) {
  switch (SelectAllReduce(LayoutOf(run.topology, run.resources))) {
    case Algorithm::kArena:
      return ArenaAllReduce(OverArena(run), what.reduction, what.input, what.output);
    case Algorithm::kHierarchical:
      return Hierarchical(run, what);
    case Algorithm::kAlone:
    case Algorithm::kFlat:
      break;
  }
  const Members members = WorldMembers(run.topology);
  return TransportAllReduce(OverTransport(run, members, what.first_step), what.reduction, what.input, what.output);
}

// An all-reduce, or a reduce-scatter by way of one, block by block in wide numbers. Gives the elements from `begin` to
// `end` only.
Status AverageIntegers(const Run& run, size_t begin, size_t end) {
  const Operation& operation = run.operation;
  const size_t element = DtypeSize(operation.dtype), numbers = NumbersOf(operation.dtype);
  const SpanIndex<ConstSpan> input(operation.input);
  const SpanIndex<MutableSpan> output(operation.output);
  const size_t total = input.size() / element;
  const size_t blocks = total == 0 ? 1 : (total + kAverageBlock - 1) / kAverageBlock;  // no bytes still take place
  std::vector<int64_t> sums(std::min(total, kAverageBlock) * numbers);
  Reduction sum;
  sum.dtype = Dtype::kInt64;
  Reduction average = run.reduction;
  for (size_t block = 0; block < blocks; ++block) {
    const size_t from = block * kAverageBlock, to = std::min(from + kAverageBlock, total);
    const MutableSpans wide{{reinterpret_cast<std::byte*>(sums.data()), (to - from) * numbers * sizeof(int64_t)}};
    int64_t* next = sums.data();
    for (const ConstSpan& span : input.Slice(from * element, to * element)) {
      WidenIntegers(average, span.data, next, span.size / element);
      next += span.size / element * numbers;
    }
    TFC_RETURN_IF_ERROR(AllReduce(run, {sum, AsConst(wide), wide, static_cast<uint32_t>(block) * kStepsOfABlock}));
    if (operation.late_contributors != nullptr)
      average.divisor = operation.late_contributors->Count(run.channel->index, run.sequence);
    const size_t first = std::clamp(begin, from, to), last = std::clamp(end, from, to);
    const int64_t* done = sums.data() + (first - from) * numbers;
    for (const MutableSpan& span : output.Slice((first - begin) * element, (last - begin) * element)) {
      FinishIntegers(average, done, span.data, span.size / element);
      done += span.size / element * numbers;
    }
  }
  return Status::Ok();
}

Status RunAllReduce(const Run& run) {
  const Operation& operation = run.operation;
  if (operation.AveragesIntegers())
    return AverageIntegers(run, 0, TotalSize(operation.input) / DtypeSize(operation.dtype));
  return AllReduce(run, {run.reduction, operation.input, operation.output});
}

Status RunReduceScatter(const Run& run) {
  const Operation& operation = run.operation;
  const auto rows = DealRows(operation.rows(), run.size());
  std::vector<size_t> offsets;
  for (int64_t row : rows) offsets.push_back(static_cast<size_t>(row) * operation.RowBytes());
  const Reduction& reduction = run.reduction;
  if (operation.AveragesIntegers()) {
    const auto rank = static_cast<size_t>(run.topology.rank);
    const size_t element = DtypeSize(operation.dtype);
    return AverageIntegers(run, offsets[rank] / element, offsets[rank + 1] / element);
  }
  if (run.arena_only())
    return ArenaReduceScatter(OverArena(run), reduction, operation.input, offsets, operation.output);
  const Members members = WorldMembers(run.topology);
  return TransportReduceScatter(OverTransport(run, members), reduction, operation.input, offsets, operation.output);
}

Status RunAllGather(const Run& run) {
  const Operation& operation = run.operation;
  auto rows = ExchangeNumbers(run, {operation.rows()});
  if (!rows.ok()) return rows.status();
  auto offsets = RowOffsets(rows.value(), operation.RowBytes());
  if (!offsets.ok()) return offsets.status();
  auto output = AllocateOutput(operation, rows.value(), offsets.value().back());
  if (!output.ok()) return output.status();
  return AllGatherBytes(run, operation.input, offsets.value(), output.value(), kDataStep);
}

Status RunBroadcast(const Run& run) {
  const Operation& operation = run.operation;
  if (run.arena_only()) return ArenaBroadcast(OverArena(run), operation.root, operation.input, operation.output);
  const Members members = WorldMembers(run.topology);
  return BroadcastFrom(OverTransport(run, members), operation.root, operation.input, operation.output);
}

std::vector<int64_t> SplitsOf(const Operation& operation, int size) {
  return operation.splits.empty() ? std::vector<int64_t>(static_cast<size_t>(size), operation.rows() / size)
                                  : operation.splits;
}

Status RunAllToAll(const Run& run) {
  const Operation& operation = run.operation;
  const auto size = static_cast<size_t>(run.size());
  const size_t row_bytes = operation.RowBytes();
  const std::vector<int64_t> mine = SplitsOf(operation, run.size());
  auto matrix = ExchangeNumbers(run, mine);
  if (!matrix.ok()) return matrix.status();
  auto everything = RowOffsets(matrix.value(), row_bytes);  // checks every entry
  if (!everything.ok()) return everything.status();
  std::vector<int64_t> received;
  for (size_t from = 0; from < size; ++from)
    received.push_back(matrix.value()[from * size + static_cast<size_t>(run.topology.rank)]);
  auto receive_offsets = RowOffsets(received, row_bytes);
  if (!receive_offsets.ok()) return receive_offsets.status();
  auto output = AllocateOutput(operation, received, receive_offsets.value().back());
  if (!output.ok()) return output.status();
  if (run.arena_only()) {
    std::vector<size_t> sizes;
    for (int64_t rows : matrix.value()) sizes.push_back(static_cast<size_t>(rows) * row_bytes);
    return ArenaAllToAll(OverArena(run), sizes, operation.input, output.value());
  }
  auto send_offsets = RowOffsets(mine, row_bytes);
  if (!send_offsets.ok()) return send_offsets.status();
  const Members members = WorldMembers(run.topology);
  return AllToAll(OverTransport(run, members, kDataStep), operation.input, send_offsets.value(), output.value(),
                  receive_offsets.value());
}

Status RunBarrier(const Run& run) {
  if (run.arena_only()) return ArenaBarrier(OverArena(run));
  const Members members = WorldMembers(run.topology);
  return DisseminationBarrier(OverTransport(run, members));
}

Status Dispatch(const Run& run) {
  switch (run.operation.collective) {
    case Collective::kAllReduce:
      return RunAllReduce(run);
    case Collective::kReduceScatter:
      return RunReduceScatter(run);
    case Collective::kAllGather:
      return RunAllGather(run);
    case Collective::kBroadcast:
      return RunBroadcast(run);
    case Collective::kAllToAll:
      return RunAllToAll(run);
    case Collective::kBarrier:
      return RunBarrier(run);
  }
  return Status(Code::kInternal, "no such collective");
}

// A world of one: the result is the (scaled) input.
Status RunAlone(const Operation& operation) {
  if (operation.collective == Collective::kBarrier) return Status::Ok();
  if (operation.collective == Collective::kAllGather || operation.collective == Collective::kAllToAll) {
    auto output = AllocateOutput(operation, {operation.rows()}, TotalSize(operation.input));
    if (!output.ok()) return output.status();
    CopySpans(operation.input, output.value());
    return Status::Ok();
  }
  if (operation.collective == Collective::kBroadcast) {
    CopySpans(operation.input, operation.output);
  } else {
    ScaleSpans(operation.ReductionFor(1), operation.input, operation.output);
  }
  return Status::Ok();
}

Status ExplainError(const Run& run, const Status& status) {
  if (status.code() != Code::kDeadlineExceeded) return status.WithContext(run.operation.Title());
  return Status(Code::kDeadlineExceeded,
                run.operation.Title() + " timed out after " +
                    std::to_string(static_cast<int>(run.operation.timeout_s + 0.5)) + " s: " + status.message(),
                status.peer());
}

// Before the channel's first operation, as a rule; then this is one look.
Status Reserve(const Run& run) {
  return run.resources.arena == nullptr ? Status::Ok() : run.resources.arena->Reserve(run.channel->index);
}

inline Status Explain(const Run& run, Status status) { return status.ok() ? status : ExplainError(run, status); }

}  // namespace

// The shards of a hierarchical all-reduce are measured at the same time, as they run. Local ranks that some node does
// not have are in no shard.
Result<Link> ProbeLink(const Topology& topology, const Resources& resources, Deadline deadline, Channel* channel) {
  const uint64_t sequence = channel->sequence++;
  const Layout layout = LayoutOf(topology, resources);
  const bool shards = SelectAllReduce(layout) == Algorithm::kHierarchical;
  const Members world = WorldMembers(topology);
  const Members shard{topology.cross_ranks, topology.cross_rank};
  const auto context = [&](const Members& members, uint32_t first_step) {
    return TransportContext{*resources.transport, members, deadline, channel->index, sequence, 0, first_step};
  };
  Link mine{0, 0, true};
  if (!shards || topology.local_rank < layout.min_local_size) {
    auto measured = MeasureLink(context(shards ? shard : world, 0));
    if (!measured.ok()) return measured.status();
    mine = measured.value();
  }
  return AgreeOnLink(context(world, kProbeSteps), mine);
}

bool UsesArenaOnly(const Topology& topology, const Resources& resources) {
  return SelectOther(LayoutOf(topology, resources)) == Algorithm::kArena;
}

Status Execute(const Topology& topology, const Operation& operation, const Resources& resources, Deadline deadline,
               Channel* channel) {
  const Run run{topology,
                operation,
                resources,
                deadline,
                channel,
                channel->sequence++,
                operation.Signature(),
                operation.ReductionFor(topology.size)};
  if (topology.size == 1) return RunAlone(operation);
  const Status reserved = Reserve(run);
  return Explain(run, reserved.ok() ? Dispatch(run) : reserved);
}

namespace {

size_t ElementsInOnePiece(const Operation& operation) {
  if (operation.collective != Collective::kAllReduce || operation.input.size() != 1 || operation.output.size() != 1 ||
      operation.AveragesIntegers())
    return 0;
  return operation.input[0].size / DtypeSize(operation.dtype);
}

}  // namespace

Prepared::Prepared(Operation checked, int size)
    : operation(std::move(checked)),
      reduction(operation.ReductionFor(size)),
      signature(operation.Signature()),
      elements(ElementsInOnePiece(operation)) {}

Status ExecutePrepared(const Topology& topology, const Prepared& prepared, const Resources& resources,
                       Deadline deadline, Channel* channel) {
  const Operation& operation = prepared.operation;
  const Run run{topology, operation,           resources,          deadline,
                channel,  channel->sequence++, prepared.signature, prepared.reduction};
  if (topology.size == 1) return RunAlone(operation);
  switch (operation.collective) {
    case Collective::kAllReduce:
      if (prepared.elements == 0) return Explain(run, Dispatch(run));
      return Explain(run, ArenaAllReduceChecked(OverArena(run), run.reduction, operation.input, operation.output,
                                                prepared.elements));
    case Collective::kBarrier:
      return Explain(run, ArenaBarrier(OverArena(run)));
    default:
      return Explain(run, Dispatch(run));
  }
}

}  // namespace tfc
