#include "tf_xla/calls.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "base/event_count.h"
#include "tf_common/communicator.h"
#include "tf_common/plan.h"
#include "tf_xla/attributes.h"

namespace tfc_tf::xla {
namespace {

// The buffers of a call without the first ones, which order the calls.
struct Memory {
  std::vector<const Buffer*> inputs;
  std::vector<const Buffer*> outputs;
};

tfc_code Fail(tfc_error* error, tfc_code code, const std::string& message) {
  error->code = code;
  std::snprintf(error->message, sizeof(error->message), "%s", message.c_str());
  return code;
}

int32_t TfcDtypeOf(int type) {
  switch (type) {
    case kPred:
      return TFC_BOOL;
    case kS8:
      return TFC_INT8;
    case kS16:
      return TFC_INT16;
    case kS32:
      return TFC_INT32;
    case kS64:
      return TFC_INT64;
    case kU8:
      return TFC_UINT8;
    case kU16:
      return TFC_UINT16;
    case kU32:
      return TFC_UINT32;
    case kU64:
      return TFC_UINT64;
    case kF16:
      return TFC_FLOAT16;
    case kF32:
      return TFC_FLOAT32;
    case kF64:
      return TFC_FLOAT64;
    case kBf16:
      return TFC_BFLOAT16;
    default:
      return -1;
  }
}

int64_t CountOf(const Buffer& buffer) {
  return std::accumulate(buffer.dimensions, buffer.dimensions + buffer.rank, int64_t{1}, std::multiplies<int64_t>());
}

std::vector<tfc_span> SpansOf(const Memory& memory) {
  std::vector<tfc_span> spans;
  for (size_t i = 0; i < memory.inputs.size(); ++i) {
    void* output = i < memory.outputs.size() ? memory.outputs[i]->data : nullptr;
    spans.push_back(tfc_span{memory.inputs[i]->data, output, CountOf(*memory.inputs[i])});
  }
  return spans;
}

// ---- a bucket plan ------------------------------------------------------------------------------------------------

// The numbers of tensors in the buckets, one after the other.
std::vector<size_t> ReadSizes(AttributeReader& reader) {
  std::istringstream text(reader.String("sizes"));
  std::vector<size_t> sizes;
  for (size_t size = 0; text >> size;) sizes.push_back(size);
  return sizes;
}

tfc_code RunPlan(AttributeReader& reader, const Memory& memory, tfc_error* error) {
  const BucketAttributes attributes = ReadBucket(reader);
  const std::vector<size_t> sizes = ReadSizes(reader);
  const std::vector<tfc_span> spans = SpansOf(memory);
  if (!reader.error().empty()) return Fail(error, TFC_INVALID_ARGUMENT, reader.error());
  if (std::accumulate(sizes.begin(), sizes.end(), size_t{0}) != spans.size() || spans.size() != memory.outputs.size())
    return Fail(error, TFC_INVALID_ARGUMENT, "the buckets of '" + attributes.plan + "' have other numbers of tensors");
  const Communicator communicator = AcquireCommunicator(attributes.process_set_id, error);
  if (communicator == nullptr) return static_cast<tfc_code>(error->code);
  const Plan plan = AcquirePlan(communicator, attributes, error);
  if (plan == nullptr) return static_cast<tfc_code>(error->code);
  std::vector<tfc_bucket> buckets;
  size_t first = 0;
  for (const size_t size : sizes) {
    const int32_t dtype = size == 0 ? -1 : TfcDtypeOf(memory.inputs[first]->dtype);
    buckets.push_back(tfc_bucket{spans.data() + first, size, dtype});
    first += size;
  }
  return tfc_plan_run(plan.get(), buckets.data(), buckets.size(), error);
}

// ---- collectives by name ------------------------------------------------------------------------------------------

// The result of an all-gather, whose size is a part of the program. Where it does not fit, the data go elsewhere: all
// ranks see the same numbers of rows, and end with the same error.
struct Gathered {
  Gathered(const Buffer& input, const Buffer& output)
      : memory(output.data),
        rows_of_each(input.dimensions[0]),
        rows(output.dimensions[0]),
        row_bytes(tfc_dtype_size(TfcDtypeOf(input.dtype)) *
                  static_cast<size_t>(std::accumulate(input.dimensions + 1, input.dimensions + input.rank, int64_t{1},
                                                      std::multiplies<int64_t>()))) {}

  static void* Allocate(void* user, const int64_t* rows, int32_t size) {
    auto* self = static_cast<Gathered*>(user);
    const auto is_same = [self](int64_t count) { return count == self->rows_of_each; };
    self->fits = std::all_of(rows, rows + size, is_same) && self->rows_of_each * size == self->rows;
    if (self->fits) return self->memory;
    self->unused.resize(static_cast<size_t>(std::accumulate(rows, rows + size, int64_t{0})) * self->row_bytes + 1);
    return self->unused.data();
  }

  void* const memory;
  const int64_t rows_of_each, rows;
  const size_t row_bytes;
  bool fits = true;
  std::vector<char> unused;
};

// A collective that was handed over. The thread that ends it may still notify when the caller has gone on.
struct Submitted {
  tfc_error error = EmptyError();  // not tfc_submit's own, which is filled in when that returns: perhaps later
  std::atomic<bool> done{false};
  tfc::EventCount events;

  static void OnDone(void* user, const tfc_error* error) {
    const std::unique_ptr<std::shared_ptr<Submitted>> held(static_cast<std::shared_ptr<Submitted>*>(user));
    Submitted& submitted = **held;
    if (error != nullptr) submitted.error = *error;
    submitted.done = true;
    submitted.events.Notify();
  }
};

tfc_code Submit(const Communicator& communicator, const tfc_request& request, tfc_error* error) {
  const auto submitted = std::make_shared<Submitted>();
  auto user = std::make_unique<std::shared_ptr<Submitted>>(submitted);
  const tfc_code code = tfc_submit(communicator.get(), &request, &Submitted::OnDone, user.get(), error);
  if (code != TFC_OK) return code;
  static_cast<void>(user.release());
  submitted->events.WaitUntil(tfc::Deadline::Never(), [&] { return submitted->done.load(); });  // it has a deadline
  *error = submitted->error;
  return static_cast<tfc_code>(error->code);
}

const char kOtherShape[] =
    ": the compiled program has its result in another shape: all ranks must have equally many rows, and as many ranks "
    "be there as when it was traced";

tfc_code RunCollective(tfc_collective collective, AttributeReader& reader, const Memory& memory, tfc_error* error) {
  const CommonAttributes common = ReadCommon(reader);
  const bool reduces = collective == TFC_ALLREDUCE || collective == TFC_REDUCESCATTER;
  const ReductionAttributes reduction = reduces ? ReadReduction(reader) : ReductionAttributes();
  const int32_t root = collective == TFC_BROADCAST ? reader.Int("root_rank") : 0;
  if (!reader.error().empty()) return Fail(error, TFC_INVALID_ARGUMENT, reader.error());
  const Communicator communicator = AcquireCommunicator(common.process_set_id, error);
  tfc_communicator_info info;
  if (communicator == nullptr || !GetInfo(communicator, &info, error)) return static_cast<tfc_code>(error->code);
  std::vector<tfc_span> spans = SpansOf(memory);
  tfc_request request{};
  request.struct_size = sizeof(request);
  request.collective = collective;
  request.dtype = memory.inputs.empty() ? int32_t{TFC_UINT8} : TfcDtypeOf(memory.inputs[0]->dtype);
  request.op = reduction.op;
  request.root = root;
  request.prescale = reduction.prescale;
  request.postscale = reduction.postscale;
  request.timeout_s = common.timeout_s;
  request.name = common.name.c_str();
  request.spans = spans.data();
  request.num_spans = spans.size();
  const bool has_rows = collective == TFC_ALLGATHER || collective == TFC_REDUCESCATTER;
  if (!has_rows) return Submit(communicator, request, error);
  const Buffer& input = *memory.inputs[0];
  const Buffer& output = *memory.outputs[0];
  request.shape = input.dimensions;
  request.ndim = static_cast<int32_t>(input.rank);
  if (collective == TFC_REDUCESCATTER) {
    if (RowsOf(info, input.dimensions[0]) != output.dimensions[0])
      return Fail(error, TFC_INVALID_ARGUMENT, "'" + common.name + "'" + kOtherShape);
    return Submit(communicator, request, error);
  }
  Gathered gathered(input, output);
  request.allocate = &Gathered::Allocate;
  request.allocate_user = &gathered;
  const tfc_code code = Submit(communicator, request, error);
  return code != TFC_OK || gathered.fits ? code
                                         : Fail(error, TFC_INVALID_ARGUMENT, "'" + common.name + "'" + kOtherShape);
}

// ---- this rank's place --------------------------------------------------------------------------------------------

tfc_code RunPlace(AttributeReader& reader, const Memory& memory, tfc_error* error) {
  const int32_t process_set_id = reader.Int("process_set_id");
  if (!reader.error().empty()) return Fail(error, TFC_INVALID_ARGUMENT, reader.error());
  const Communicator communicator = AcquireCommunicator(process_set_id, error);
  tfc_communicator_info info;
  if (communicator == nullptr || !GetInfo(communicator, &info, error)) return static_cast<tfc_code>(error->code);
  const int32_t place[] = {info.rank, info.size};
  std::memcpy(memory.outputs.at(0)->data, place, sizeof(place));
  return TFC_OK;
}

Memory MemoryOf(const CallFrame& frame) {
  const Buffers& inputs = frame.arguments;
  const Buffers& outputs = frame.results;
  return {{inputs.buffers + 1, inputs.buffers + inputs.size}, {outputs.buffers + 1, outputs.buffers + outputs.size}};
}

}  // namespace

tfc_code RunCall(const CallFrame& frame, tfc_error* error) {
  static const auto* const collectives = new std::map<std::string, tfc_collective>{
      {"allreduce", TFC_ALLREDUCE}, {"allgather", TFC_ALLGATHER},         {"broadcast", TFC_BROADCAST},
      {"barrier", TFC_BARRIER},     {"reducescatter", TFC_REDUCESCATTER},
  };
  if (frame.arguments.size < 1 || frame.results.size < 1)
    return Fail(error, TFC_INVALID_ARGUMENT, "a call has at least one argument and one result");
  *static_cast<int32_t*>(frame.results.buffers[0]->data) = 0;
  AttributeReader reader(frame.attributes);
  const Memory memory = MemoryOf(frame);
  const std::string kind = reader.String("kind");
  if (kind == "plan") return RunPlan(reader, memory, error);
  if (kind == "place") return RunPlace(reader, memory, error);
  const auto found = collectives->find(kind);
  if (found == collectives->end()) return Fail(error, TFC_UNIMPLEMENTED, "there is no call of the kind '" + kind + "'");
  return RunCollective(found->second, reader, memory, error);
}

}  // namespace tfc_tf::xla
