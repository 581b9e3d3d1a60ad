// The last calls of a thread, checked and taken apart: a loop that makes the same call on other data finds it here and
// skips the copy, the check and the signature. A small operation would spend most of its time on them.
#ifndef TFCOLLECTIVE_CAPI_REPEATED_CALLS_H_
#define TFCOLLECTIVE_CAPI_REPEATED_CALLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "capi/communicator_impl.h"
#include "communicator/execute.h"
#include "tfcollective/tfcollective.h"

namespace tfc {

class RepeatedCalls {
 public:
  static RepeatedCalls& OfThisThread();

  // The prepared operation of a call that differs from `request` in nothing but its memory, which it now has.
  // nullptr: there was none, or there is something about this one that only a full check can tell.
  const Prepared* Find(const std::shared_ptr<CommunicatorImpl>& impl, const tfc_request& request) {
    for (Call& call : calls_) {
      if (call.Of(impl) && Same(call, request)) {
        if (call.prepared->operation.input.empty()) return call.prepared.get();
        return PointAt(request.spans[0], call.prepared.get()) ? call.prepared.get() : nullptr;
      }
    }
    return nullptr;
  }

  // Whether Find could ever give it: all-reduce of one piece, and barrier.
  static bool CanRepeat(const tfc_request& request);
  // In the place of the oldest one.
  void Remember(const std::shared_ptr<CommunicatorImpl>& impl, const tfc_request& request,
                std::unique_ptr<Prepared> prepared);

 private:
  static constexpr size_t kCalls = 4;  // a loop has a few: an all-reduce, a barrier

  struct Call {
    std::weak_ptr<CommunicatorImpl> impl;  // no other communicator is ever taken for it, as would be by its address
    tfc_request request;                   // up to `timeout_s`: the rest are pointers
    int64_t count;
    std::unique_ptr<Prepared> prepared;

    bool Of(const std::shared_ptr<CommunicatorImpl>& other) const {
      return !impl.owner_before(other) && !other.owner_before(impl);
    }
  };

  static bool Same(const Call& call, const tfc_request& request);
  // False if memory is missing.
  static bool PointAt(const tfc_span& span, Prepared* prepared) {
    if (span.input == nullptr || span.output == nullptr) return false;
    prepared->operation.input[0].data = static_cast<const std::byte*>(span.input);
    prepared->operation.output[0].data = static_cast<std::byte*>(span.output);
    return true;
  }

  std::array<Call, kCalls> calls_;
  size_t oldest_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_CAPI_REPEATED_CALLS_H_
