// Validates the arguments of the C interface and converts them to internal types.
#ifndef TFCOLLECTIVE_CAPI_ARGUMENTS_H_
#define TFCOLLECTIVE_CAPI_ARGUMENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/status.h"
#include "capi/communicator_impl.h"
#include "communicator/operation.h"
#include "communicator/topology.h"
#include "executor/engine.h"
#include "tfcollective/tfcollective.h"

namespace tfc {

// The caller's struct as ours: what it does not know about is zero.
template <typename Struct>
Result<Struct> Read(const Struct* given, const char* what) {
  if (given == nullptr || given->struct_size < sizeof(size_t))
    return Status(Code::kInvalidArgument, std::string(what) + " is missing or its struct_size is not set");
  Struct copy;
  std::memset(&copy, 0, sizeof(copy));
  std::memcpy(&copy, given, std::min(given->struct_size, sizeof(Struct)));
  return copy;
}

// INVALID_ARGUMENT unless the seconds are from 0 to TFC_MAX_SECONDS; `what` begins the message.
Status CheckSeconds(double seconds, const char* what);

inline std::string Text(const char* text) { return text == nullptr ? "" : text; }

Result<PortRange> PortsOf(const tfc_listener_options& given);
Result<CommunicatorOptions> CommunicatorOptionsOf(const tfc_communicator_options& given);
Result<PlanSpec> PlanSpecOf(const tfc_plan_options& given);
// For one rank of the world; all spans are borrowed.
Result<Operation> OperationOf(const tfc_request& given, const Topology& topology);
// As OperationOf, of a plan's bucket: memory and type only, the rest comes from the plan.
Result<Operation> BucketOf(int32_t dtype, const tfc_span* spans, size_t num_spans);
Done DoneOf(tfc_done_fn done, void* user, const WorldRanks& world_ranks);

}  // namespace tfc

#endif  // TFCOLLECTIVE_CAPI_ARGUMENTS_H_
