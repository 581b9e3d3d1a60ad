#include "collectives/reduce/reduction.h"

#include <cmath>
#include <string>

namespace tfc {
namespace {

Status CheckScaling(const Reduction& reduction) {
  if (!std::isfinite(reduction.prescale) || !std::isfinite(reduction.postscale)) {
    return Status(Code::kInvalidArgument, "the scale factors must be finite numbers");
  }
  if (reduction.divisor < 1) {
    return Status(Code::kInvalidArgument, "the divisor must be positive, not " + std::to_string(reduction.divisor));
  }
  if (reduction.dtype == Dtype::kBool && (reduction.scales_input() || reduction.scales_output())) {
    return Status(Code::kUnimplemented, "bool values cannot be scaled or averaged");
  }
  return Status::Ok();
}

}  // namespace

Status CheckReduction(const Reduction& reduction) {
  if (!IsDtype(static_cast<int>(reduction.dtype))) {
    return Status(Code::kInvalidArgument, "no such dtype: " + std::to_string(static_cast<int>(reduction.dtype)));
  }
  switch (reduction.op) {
    case Op::kSum:
    case Op::kMin:
    case Op::kMax:
    case Op::kProduct:
      return CheckScaling(reduction);
    default:
      return Status(Code::kInvalidArgument, "no such reduction: " + std::to_string(static_cast<int>(reduction.op)));
  }
}

}  // namespace tfc
