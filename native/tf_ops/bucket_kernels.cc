// The two ops of a bucket. TensorFlow runs the stateful ops of a function one after the other, so one
// op that waited would keep the next bucket from starting: start hands the tensors to the engine and
// ends at once; done gives the results.
#include <chrono>
#include <memory>
#include <utility>

#include "tf_common/buckets.h"
#include "tf_common/communicator.h"
#include "tf_common/dtypes.h"
#include "tf_common/plan.h"
#include "tf_ops/async_done.h"
#include "tf_ops/kernel_registration.h"
#include "tf_ops/registration.h"
#include "tf_ops/tensors.h"

namespace tfc_tf::ops {
namespace {

// On the clock of the timeline.
int64_t NowNanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Shows in the timeline, if one is recorded, how long TensorFlow had nothing to do but wait.
void RecordWait(const BucketKey& key, int64_t began_ns) {
  const auto& [process_set_id, plan, number] = key;
  const Communicator communicator = AcquireCommunicator(process_set_id, nullptr);
  if (communicator == nullptr) return;
  const std::string name = plan + "/bucket " + std::to_string(number);
  tfc_timeline_event event{};
  event.struct_size = sizeof(event);
  event.name = name.c_str();
  event.began_ns = began_ns;
  event.ended_ns = NowNanoseconds();
  tfc_timeline_add(communicator.get(), &event, nullptr);
}

OpError SetOutputs(TF_OpKernelContext* context, const std::vector<TensorPair>& pairs) {
  if (TF_NumOutputs(context) != static_cast<int>(pairs.size())) {
    return OpError::Invalid("the bucket was started with " + std::to_string(pairs.size()) + " tensors, but " +
                            std::to_string(TF_NumOutputs(context)) + " are asked for");
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto index = static_cast<int>(i);
    TF_Tensor* tensor = pairs[i].output.get();
    if (TF_ExpectedOutputDataType(context, index) != TF_TensorType(tensor)) {
      return OpError::Invalid("the bucket was started with tensors of another type than is asked for");
    }
    const TfStatus status = NewTfStatus();
    TF_SetOutput(context, index, tensor, status.get());  // shares the buffer
    const OpError error = FromTfStatus(status);
    if (!error.ok()) return error;
  }
  return OpError();
}

// A done kernel that waits for its bucket.
struct Waiter {
  TF_OpKernelContext* context;
  AsyncDone done;
  int64_t since_ns;
};

// One started bucket: the library finishes it, and a done kernel awaits it.
class Bucket {
 public:
  Bucket(BucketKey key, std::vector<TensorPair> pairs) : key_(std::move(key)), pairs_(std::move(pairs)) {}

  // The one table of this process. Never destroyed: the library's thread may finish buckets while the process exits.
  static BucketRegistry<Bucket>& Started() {
    static auto* const registry = new BucketRegistry<Bucket>(1);
    return *registry;
  }

  // Once. Tensors that are not needed are dropped at once.
  void Finish(OpError error) {
    error_ = std::move(error);
    if (!error_.ok()) pairs_.clear();
    for (TensorPair& pair : pairs_) pair.input.reset();
    const std::optional<Waiter> waiter = rendezvous_.Finish();
    if (!waiter) return;
    RecordWait(key_, waiter->since_ns);
    Deliver(*waiter);
  }

  // Once. Never blocks.
  void Await(Waiter waiter) {
    if (const std::optional<Waiter> now = rendezvous_.Await(std::move(waiter))) Deliver(*now);
  }

  bool finished() const { return rendezvous_.finished(); }

 private:
  void Deliver(const Waiter& waiter) {
    const OpError error = error_.ok() ? SetOutputs(waiter.context, pairs_) : error_;
    pairs_.clear();
    if (!error.ok()) TF_OpKernelContext_Failure(waiter.context, ToTfStatus(error).get());
    waiter.done();
  }

  const BucketKey key_;
  Rendezvous<Waiter> rendezvous_;
  // Of the finishing side, then of the delivering one.
  OpError error_;
  std::vector<TensorPair> pairs_;
};

class BucketStartKernel {
 public:
  explicit BucketStartKernel(AttributeReader& reader) : attributes_(ReadBucket(reader)) {}

  OpError Compute(TF_OpKernelContext* context) const {
    tfc_error failure = EmptyError();
    const Communicator communicator = AcquireCommunicator(attributes_.process_set_id, &failure);
    if (communicator == nullptr) return OpError::From(failure);
    const Plan plan = AcquirePlan(communicator, attributes_, &failure);
    if (plan == nullptr) return OpError::From(failure);
    std::vector<TensorPair> pairs;
    OpError error = GetTensors(context, &pairs);
    Tensor handle;
    if (error.ok()) error = AllocateOutput(context, 0, TF_INT64, {}, &handle);
    if (!error.ok()) return error;
    return StartBucket(plan, std::move(pairs), static_cast<int64_t*>(DataOf(handle.get())));
  }

 private:
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
    const BucketKey key{attributes_.process_set_id, attributes_.plan, attributes_.number};
    const auto bucket = std::make_shared<Bucket>(key, std::move(pairs));
    std::vector<std::shared_ptr<Bucket>> abandoned;
    *handle = Bucket::Started().Add(key, bucket, &abandoned);
    auto* user = new std::shared_ptr<Bucket>(bucket);
    tfc_error error = EmptyError();
    if (tfc_plan_start(plan.get(), attributes_.number, dtype, spans.data(), spans.size(), &OnReduced, user, &error) ==
        TFC_OK) {
      return OpError();
    }
    delete user;
    Bucket::Started().Take(*handle);
    return OpError::From(error);
  }

  static void OnReduced(void* user, const tfc_error* error) {
    const std::unique_ptr<std::shared_ptr<Bucket>> bucket(static_cast<std::shared_ptr<Bucket>*>(user));
    (*bucket)->Finish(error == nullptr ? OpError() : OpError::From(*error));
  }

  const BucketAttributes attributes_;
};

class BucketDoneKernel {
 public:
  explicit BucketDoneKernel(AttributeReader&) {}

  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    Waiter waiter{context, AsyncDone(done), NowNanoseconds()};
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
    *bucket = Bucket::Started().Take(number);
    if (*bucket) return OpError();
    return OpError{TFC_FAILED_PRECONDITION, -1, BucketRegistry<Bucket>::NotStarted(number, "")};
  }
};

}  // namespace

std::string RegisterBucketKernels() {
  std::string error = RegisterKernel<BucketStartKernel>("TfcollectiveBucketStart");
  if (error.empty()) error = RegisterAsyncKernel<BucketDoneKernel>("TfcollectiveBucketDone");
  return error;
}

}  // namespace tfc_tf::ops
