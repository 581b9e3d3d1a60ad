// The two ops of a bucket. TensorFlow runs the stateful ops of a function one after the other, so one
// op that waited would keep the next bucket from starting: start hands the tensors to the engine and
// ends at once; done gives the results.
#include <memory>
#include <utility>

#include "tf_ops/bucket_registry.h"
#include "tf_ops/kernel_registration.h"
#include "tf_ops/kernels.h"
#include "tf_ops/communicator.h"

namespace tfc_ops {
namespace {

struct PlanDeleter {
  void operator()(tfc_plan* plan) const { tfc_plan_release(plan); }
};
using Plan = std::unique_ptr<tfc_plan, PlanDeleter>;

class BucketStartKernel {
 public:
  explicit BucketStartKernel(AttributeReader& reader)
      : name_(reader.String("plan")),
        signature_(reader.String("signature")),
        num_buckets_(reader.Int("num_buckets")),
        bucket_(reader.Int("bucket")),
        process_set_id_(reader.Int("process_set_id")),
        timeout_s_(reader.Float("timeout")),
        reduction_(ReadReduction(reader)) {}

  OpError Compute(TF_OpKernelContext* context) const {
    Communicator communicator;
    Plan plan;
    OpError error = AcquireCommunicator(process_set_id_, &communicator);
    if (error.ok()) error = AcquirePlan(communicator, &plan);
    std::vector<TensorPair> pairs;
    if (error.ok()) error = GetTensors(context, &pairs);
    Tensor handle;
    if (error.ok()) error = AllocateOutput(context, 0, TF_INT64, {}, &handle);
    if (!error.ok()) return error;
    return StartBucket(plan, std::move(pairs), static_cast<int64_t*>(DataOf(handle.get())));
  }

 private:
  OpError AcquirePlan(const Communicator& communicator, Plan* plan) const {
    tfc_plan_options options{};
    options.struct_size = sizeof(options);
    options.name = name_.c_str();
    options.signature = signature_.c_str();
    options.num_buckets = num_buckets_;
    options.op = reduction_.op;
    options.prescale = reduction_.prescale;
    options.postscale = reduction_.postscale;
    options.timeout_s = timeout_s_;
    tfc_error error = EmptyError();
    tfc_plan* raw = nullptr;
    if (tfc_plan_acquire(communicator.get(), &options, &raw, &error) != TFC_OK) return OpError::From(error);
    plan->reset(raw);
    return OpError();
  }

  // References of the inputs, and memory for the results: the outputs belong to the done op.
  static OpError GetTensors(TF_OpKernelContext* context, std::vector<TensorPair>* pairs) {
    pairs->resize(static_cast<size_t>(TF_NumInputs(context)));
    for (size_t i = 0; i < pairs->size(); ++i) {
      TensorPair& pair = (*pairs)[i];
      OpError error = GetInput(context, static_cast<int>(i), &pair.input);
      if (!error.ok()) return error;
      error = AllocateTemp(context, TF_TensorType(pair.input.get()), ShapeOf(pair.input.get()), &pair.output);
      if (!error.ok()) return error;
    }
    return OpError();
  }

  OpError StartBucket(const Plan& plan, std::vector<TensorPair> pairs, int64_t* handle) const {
    std::vector<tfc_span> spans;
    for (const TensorPair& pair : pairs) spans.push_back(SpanOf(pair));
    const int32_t dtype = TfcDtypeOf(TF_TensorType(pairs[0].input.get()));
    const auto bucket = std::make_shared<Bucket>(BucketKey{process_set_id_, name_, bucket_}, std::move(pairs));
    *handle = BucketRegistry::Get().Add(bucket);
    auto* engines = new std::shared_ptr<Bucket>(bucket);
    tfc_error error = EmptyError();
    if (tfc_plan_start(plan.get(), bucket_, dtype, spans.data(), spans.size(), &OnReduced, engines, &error) == TFC_OK) {
      return OpError();
    }
    delete engines;
    BucketRegistry::Get().Take(*handle);
    return OpError::From(error);
  }

  static void OnReduced(void* user, const tfc_error* error) {
    const std::unique_ptr<std::shared_ptr<Bucket>> bucket(static_cast<std::shared_ptr<Bucket>*>(user));
    (*bucket)->Finish(error == nullptr ? OpError() : OpError::From(*error));
  }

  const std::string name_;
  const std::string signature_;
  const int32_t num_buckets_;
  const int32_t bucket_;
  const int32_t process_set_id_;
  const double timeout_s_;
  const ReductionAttributes reduction_;
};

class BucketDoneKernel {
 public:
  explicit BucketDoneKernel(AttributeReader&) {}

  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    BucketWaiter waiter{context, AsyncDone(done)};
    std::shared_ptr<Bucket> bucket;
    const OpError error = Find(context, &bucket);
    if (error.ok()) return bucket->Await(std::move(waiter));
    TF_OpKernelContext_Failure(context, ToTfStatus(error).get());
    waiter.done();
  }

 private:
  static OpError Find(TF_OpKernelContext* context, std::shared_ptr<Bucket>* bucket) {
    Tensor handle;
    const OpError error = GetInput(context, 0, &handle);
    if (!error.ok()) return error;
    if (TF_TensorElementCount(handle.get()) != 1) return OpError::Invalid("a bucket's handle is one number");
    const int64_t number = *static_cast<const int64_t*>(DataOf(handle.get()));
    *bucket = BucketRegistry::Get().Take(number);
    if (*bucket) return OpError();
    return OpError{TFC_FAILED_PRECONDITION, -1,
                   "there is no started bucket with the handle " + std::to_string(number) +
                       ": each start has one done, before its bucket is started " +
                       std::to_string(BucketRegistry::kKept) + " times more"};
  }
};

}  // namespace

std::string RegisterBucketKernels() {
  std::string error = RegisterKernel<BucketStartKernel>("TfcollectiveBucketStart");
  if (error.empty()) error = RegisterAsyncKernel<BucketDoneKernel>("TfcollectiveBucketDone");
  return error;
}

}  // namespace tfc_ops
