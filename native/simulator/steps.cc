#include "simulator/steps.h"

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "base/dtype.h"
#include "capi/errors.h"
#include "collectives/algorithms/transport_algorithms.h"
#include "simulator/recording_transport.h"

namespace {

using tfc::Code;
using tfc::Status;

constexpr int32_t kMostRanks = 1 << 16;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

Status Check(int32_t size, int32_t rank, int64_t count, int32_t dtype, tfc_step_fn visit) {
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                              ": expected 1 to " + std::to_string(kMostRanks) +
                                              " ranks and one of them");
  if (!tfc::IsDtype(dtype)) return Status(Code::kInvalidArgument, "there is no dtype " + std::to_string(dtype));
  if (count < 0) return Status(Code::kInvalidArgument, "a negative count");
  return visit == nullptr ? Status(Code::kInvalidArgument, "there is no function to show the steps to") : Status::Ok();
}

tfc_step StepOf(const tfc::RecordedStep& step) {
  tfc_step shown{};
  shown.kind = static_cast<int32_t>(step.kind);
  shown.peer = step.peer;
  shown.message = step.message;
  shown.to_scratch = step.elsewhere ? 1 : 0;
  shown.bytes = step.bytes;
  shown.request = step.ticket;
  return shown;
}

}  // namespace

extern "C" tfc_code tfc_allreduce_steps(int32_t size, int32_t rank, int64_t count, int32_t dtype, tfc_step_fn visit,
                                        void* user, tfc_error* error) {
  return tfc::Guarded(error, [&]() -> Status {
    const Status checked = Check(size, rank, count, dtype, visit);
    if (!checked.ok()) return checked;
    const size_t bytes = static_cast<size_t>(count) * tfc::DtypeSize(static_cast<tfc::Dtype>(dtype));
    // Zero pages cost nothing until an algorithm writes to them.
    const std::unique_ptr<std::byte[], Free> memory(static_cast<std::byte*>(std::calloc(bytes + 1, 1)));
    if (memory == nullptr) return Status(Code::kResourceExhausted, "no memory for " + std::to_string(bytes) + " bytes");
    const tfc::MutableSpan buffer{memory.get(), bytes};
    tfc::RecordingTransport transport(rank, size, buffer, [&](const tfc::RecordedStep& step) {
      const tfc_step shown = StepOf(step);
      visit(user, &shown);
    });
    tfc::Members members;
    members.ranks.resize(static_cast<size_t>(size));
    std::iota(members.ranks.begin(), members.ranks.end(), 0);
    members.index = rank;
    const tfc::TransportContext context{transport, members, tfc::Deadline::After(1.0)};
    tfc::Reduction reduction;
    reduction.dtype = static_cast<tfc::Dtype>(dtype);
    const tfc::MutableSpans spans{buffer};
    return tfc::TransportAllReduce(context, reduction, tfc::AsConst(spans), spans);
  });
}
