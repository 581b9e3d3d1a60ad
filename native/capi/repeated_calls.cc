#include "capi/repeated_calls.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tfc {
namespace {

// The fields of a request that are no pointers, in one piece.
constexpr size_t kValueBytes = offsetof(tfc_request, timeout_s) + sizeof(double);
static_assert(kValueBytes == sizeof(size_t) + 4 * sizeof(int32_t) + 3 * sizeof(double), "no padding in between");

bool SameShape(const tfc_request& request, const std::vector<int64_t>& shape) {
  if (static_cast<size_t>(request.ndim) != shape.size()) return false;
  return shape.empty() || (request.shape != nullptr && std::equal(shape.begin(), shape.end(), request.shape));
}

}  // namespace

RepeatedCalls& RepeatedCalls::OfThisThread() {
  thread_local RepeatedCalls calls;
  return calls;
}

bool RepeatedCalls::CanRepeat(const tfc_request& request) {
  if (request.struct_size != sizeof(tfc_request) || request.splits != nullptr || request.allocate != nullptr)
    return false;
  if (request.collective == TFC_BARRIER) return request.num_spans == 0;
  return request.collective == TFC_ALLREDUCE && request.num_spans == 1 && request.spans[0].count > 0;
}

bool RepeatedCalls::Same(const Call& call, const tfc_request& request) {
  if (std::memcmp(&call.request, &request, kValueBytes) != 0) return false;
  if (request.num_spans != call.request.num_spans || request.splits != nullptr || request.allocate != nullptr)
    return false;
  if (request.num_spans != 0 && (request.spans == nullptr || request.spans[0].count != call.count)) return false;
  const Operation& operation = call.prepared->operation;
  if (std::strcmp(request.name == nullptr ? "" : request.name, operation.name.c_str()) != 0) return false;
  return SameShape(request, operation.shape);
}

void RepeatedCalls::Remember(const std::shared_ptr<CommunicatorImpl>& impl, const tfc_request& request,
                             std::unique_ptr<Prepared> prepared) {
  Call& call = calls_[oldest_];
  oldest_ = (oldest_ + 1) % kCalls;
  call.impl = impl;
  call.request = request;
  call.count = request.num_spans == 0 ? 0 : request.spans[0].count;
  call.prepared = std::move(prepared);
}

}  // namespace tfc
