// The bucket plan that a bucket belongs to.
#ifndef TFCOLLECTIVE_TF_COMMON_PLAN_H_
#define TFCOLLECTIVE_TF_COMMON_PLAN_H_

#include <memory>

#include "tf_common/attributes.h"
#include "tf_common/communicator.h"

namespace tfc_tf {

struct PlanDeleter {
  void operator()(tfc_plan* plan) const { tfc_plan_release(plan); }
};
using Plan = std::unique_ptr<tfc_plan, PlanDeleter>;

// Empty, and the error is filled in, where that fails.
inline Plan AcquirePlan(const Communicator& communicator, const BucketAttributes& bucket, tfc_error* error) {
  tfc_plan_options options{};
  options.struct_size = sizeof(options);
  options.name = bucket.plan.c_str();
  options.signature = bucket.signature.c_str();
  options.num_buckets = bucket.num_buckets;
  options.op = bucket.reduction.op;
  options.prescale = bucket.reduction.prescale;
  options.postscale = bucket.reduction.postscale;
  options.timeout_s = bucket.timeout_s;
  tfc_plan* plan = nullptr;
  tfc_plan_acquire(communicator.get(), &options, &plan, error);
  return Plan(plan);
}

}  // namespace tfc_tf

#endif  // TFCOLLECTIVE_TF_COMMON_PLAN_H_
