#include "capi/arguments.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "capi/errors.h"

namespace tfc {
namespace {

Status AddSpans(const tfc_span* spans, size_t num_spans, size_t element, Operation* operation) {
  if (num_spans != 0 && spans == nullptr) return Status(Code::kInvalidArgument, "the spans are missing");
  operation->input.reserve(num_spans);
  operation->output.reserve(num_spans);
  for (size_t i = 0; i < num_spans; ++i) {
    const tfc_span& span = spans[i];
    if (span.count < 0 || (span.count > 0 && span.input == nullptr))
      return Status(Code::kInvalidArgument, "span " + std::to_string(i) + " has no input or a negative count");
    if (span.count > std::numeric_limits<int64_t>::max() / static_cast<int64_t>(element))
      return Status(Code::kInvalidArgument, "span " + std::to_string(i) + " has more elements than memory can hold");
    const size_t bytes = static_cast<size_t>(span.count) * element;
    operation->input.push_back({static_cast<const std::byte*>(span.input), bytes});
    operation->output.push_back({static_cast<std::byte*>(span.output), bytes});
  }
  return Status::Ok();
}

// The output of a reduce-scatter is this rank's rows only; of a gather it is not known yet.
void FitOutput(int rank, int size, Operation* operation) {
  if (operation->collective == Collective::kAllGather || operation->collective == Collective::kAllToAll) {
    operation->output.clear();
  } else if (operation->collective == Collective::kReduceScatter && !operation->output.empty()) {
    const auto rows = DealRows(operation->rows(), size);
    const int64_t mine = rows[static_cast<size_t>(rank) + 1] - rows[static_cast<size_t>(rank)];
    operation->output.resize(1);
    operation->output[0].size = static_cast<size_t>(mine) * operation->RowBytes();
  }
}

Status CheckOutput(const Operation& operation) {
  for (const MutableSpan& piece : operation.output)
    if (piece.size > 0 && piece.data == nullptr)
      return Status(Code::kInvalidArgument, operation.Title() + ": an output is missing");
  return Status::Ok();
}

}  // namespace

Status CheckSeconds(double seconds, const char* what) {
  if (seconds >= 0 && seconds <= TFC_MAX_SECONDS) return Status::Ok();  // not NaN either
  return Status(Code::kInvalidArgument, std::string(what) + ": expected 0 to " +
                                            std::to_string(static_cast<int64_t>(TFC_MAX_SECONDS)) + " seconds, not " +
                                            std::to_string(seconds));
}

Result<PortRange> PortsOf(const tfc_listener_options& given) {
  const int32_t first = given.first_port, last = given.last_port;
  const int32_t least = first == 0 && last == 0 ? 0 : 1;
  if (first < least || last < first || last > UINT16_MAX)
    return Status(Code::kInvalidArgument, "expected ports from 1 to 65535, the first one not above the last one, got " +
                                              std::to_string(first) + " to " + std::to_string(last));
  return PortRange{static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

Result<CommunicatorOptions> CommunicatorOptionsOf(const tfc_communicator_options& given) {
  if (given.size < 1)
    return Status(Code::kInvalidArgument, "the world size must be at least 1, not " + std::to_string(given.size));
  if (given.rank < 0 || given.rank >= given.size)
    return Status(Code::kInvalidArgument,
                  "rank " + std::to_string(given.rank) + " is not in a world of " + std::to_string(given.size));
  CommunicatorOptions options;
  options.rank = given.rank;
  options.addresses.resize(static_cast<size_t>(given.size));
  if (given.size > 1) {
    if (given.addresses == nullptr) return Status(Code::kInvalidArgument, "the addresses are missing");
    if (given.key == nullptr || given.key_size < 16 || given.key_size > 64)
      return Status(Code::kInvalidArgument, "the job key must have 16 to 64 bytes");
    for (int32_t rank = 0; rank < given.size; ++rank)
      options.addresses[static_cast<size_t>(rank)] = Text(given.addresses[rank]);
    options.key.assign(given.key, given.key + given.key_size);
  }
  if (given.transport != TFC_TRANSPORT_AUTO && given.transport != TFC_TRANSPORT_TCP)
    return Status(Code::kInvalidArgument, "unknown transport " + std::to_string(given.transport));
  options.generation = given.generation;
  TFC_RETURN_IF_ERROR(CheckSeconds(given.connect_timeout_s, "the timeout of connecting"));
  TFC_RETURN_IF_ERROR(CheckSeconds(given.op_timeout_s, "the timeout of operations"));
  TFC_RETURN_IF_ERROR(CheckSeconds(given.stall_warning_s, "the time of the stall warning"));
  if (given.connect_timeout_s > 0) options.connect_timeout_s = given.connect_timeout_s;
  if (given.op_timeout_s > 0) options.op_timeout_s = given.op_timeout_s;
  options.stall_warning_s = given.stall_warning_s;
  options.shared_memory = given.transport == TFC_TRANSPORT_AUTO;
  options.spin_us = given.spin_us;
  options.probe_link = given.skip_link_probe == 0;
  if (given.cancellation != nullptr) options.cancellation = &given.cancellation->cancellation;
  if (given.world_ranks != nullptr)
    options.world_ranks = WorldRanks(std::vector<int>(given.world_ranks, given.world_ranks + given.size));
  options.log = Log(given.log, given.log_user).In(options.world_ranks.Context());
  return options;
}

Result<PlanSpec> PlanSpecOf(const tfc_plan_options& given) {
  if (!IsOp(given.op)) return Status(Code::kInvalidArgument, "unknown operation " + std::to_string(given.op));
  if (given.num_buckets < 1) return Status(Code::kInvalidArgument, "a bucket plan needs at least one bucket");
  PlanSpec spec;
  spec.name = Text(given.name);
  TFC_RETURN_IF_ERROR(CheckSeconds(given.timeout_s, "the timeout of a bucket plan"));
  spec.signature = Text(given.signature);
  spec.num_buckets = static_cast<size_t>(given.num_buckets);
  spec.op = static_cast<Op>(given.op);
  spec.prescale = given.prescale;
  spec.postscale = given.postscale;
  spec.timeout_s = given.timeout_s;
  return spec;
}

Result<Operation> OperationOf(const tfc_request& given, const Topology& topology) {
  if (given.collective < TFC_ALLREDUCE || given.collective > TFC_BARRIER)
    return Status(Code::kInvalidArgument, "unknown collective " + std::to_string(given.collective));
  if (!IsDtype(given.dtype)) return Status(Code::kInvalidArgument, "unknown dtype " + std::to_string(given.dtype));
  if (!IsOp(given.op)) return Status(Code::kInvalidArgument, "unknown operation " + std::to_string(given.op));
  Operation operation;
  operation.collective = static_cast<Collective>(given.collective);
  operation.dtype = static_cast<Dtype>(given.dtype);
  operation.op = static_cast<Op>(given.op);
  operation.root = given.root;
  operation.prescale = given.prescale;
  operation.postscale = given.postscale;
  operation.timeout_s = given.timeout_s;
  operation.name = Text(given.name);
  if (const size_t tab = operation.name.find('\t'); tab != std::string::npos) {
    operation.label = operation.name.substr(tab + 1);
    operation.name.resize(tab);
  }
  if (const Status fits = CheckSeconds(given.timeout_s, "timeout"); !fits.ok())
    return fits.WithContext(operation.Title());
  if (given.ndim < 0) return Status(Code::kInvalidArgument, "the number of dimensions is negative");
  if (given.ndim > 0 && given.shape == nullptr) return Status(Code::kInvalidArgument, "the shape is missing");
  if (given.shape != nullptr) operation.shape.assign(given.shape, given.shape + given.ndim);
  if (given.splits != nullptr) operation.splits.assign(given.splits, given.splits + topology.size);
  if (given.allocate != nullptr) {
    operation.allocate = [allocate = given.allocate, user = given.allocate_user](const std::vector<int64_t>& rows) {
      return static_cast<std::byte*>(allocate(user, rows.data(), static_cast<int32_t>(rows.size())));
    };
  }
  TFC_RETURN_IF_ERROR(AddSpans(given.spans, given.num_spans, DtypeSize(operation.dtype), &operation));
  FitOutput(topology.rank, topology.size, &operation);
  TFC_RETURN_IF_ERROR(CheckOutput(operation));
  return operation;
}

Result<Operation> BucketOf(int32_t dtype, const tfc_span* spans, size_t num_spans) {
  if (!IsDtype(dtype)) return Status(Code::kInvalidArgument, "unknown dtype " + std::to_string(dtype));
  Operation operation;
  operation.dtype = static_cast<Dtype>(dtype);
  TFC_RETURN_IF_ERROR(AddSpans(spans, num_spans, DtypeSize(operation.dtype), &operation));
  TFC_RETURN_IF_ERROR(CheckOutput(operation));
  return operation;
}

Done DoneOf(tfc_done_fn done, void* user, const WorldRanks& world_ranks) {
  return [done, user, world_ranks](const Status& status) {
    if (status.ok()) return done(user, nullptr);
    tfc_error error{};
    error.struct_size = sizeof(error);
    FillError(world_ranks.Translate(status), &error);
    done(user, &error);
  };
}

}  // namespace tfc
