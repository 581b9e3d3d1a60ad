// TensorFlow's kernels on GPUs for the ops of _tf_ops.so. In C++, because only there TensorFlow tells its stream: so
// there is one such library for each version of TensorFlow. The host never waits in them, neither for the GPU nor for
// a peer. All-gather, all-to-all, barrier and join have none: TensorFlow runs those on the processor.
#include <tensorflow/core/framework/op_kernel.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_common/attributes.h"
#include "tf_common/buckets.h"
#include "tf_common/communicator.h"
#include "tf_gpu/device.h"
#include "tf_gpu/operation.h"

namespace tfc_tf::gpu {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;

// See tf_common/attributes.h. TensorFlow keeps the first error.
class AttributeReader {
 public:
  explicit AttributeReader(OpKernelConstruction* construction) : construction_(construction) {}

  std::string String(const char* name) { return Get<std::string>(name); }
  int32_t Int(const char* name) { return Get<int32_t>(name); }
  double Float(const char* name) { return Get<float>(name); }
  void Fail(const std::string& message) { Check(absl::InvalidArgumentError(message)); }

 private:
  template <typename Value>
  Value Get(const char* name) {
    Value value{};
    Check(construction_->GetAttr(name, &value));
    return value;
  }
  void Check(const absl::Status& status) {
    if (!status.ok() && construction_->status().ok()) construction_->CtxFailure(status);
  }

  OpKernelConstruction* const construction_;
};

// All-reduce of one tensor or several, broadcast and reduce-scatter.
class CollectiveKernel : public AsyncOpKernel {
 public:
  CollectiveKernel(OpKernelConstruction* construction, int32_t collective) : AsyncOpKernel(construction) {
    AttributeReader reader(construction);
    static_cast<CommonAttributes&>(request_) = ReadCommon(reader);
    request_.collective = collective;
    if (collective == TFC_BROADCAST) {
      request_.root = reader.Int("root_rank");
    } else {
      request_.reduction = ReadReduction(reader);
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::vector<TensorPair> pairs(static_cast<size_t>(context->num_inputs()));
    absl::Status status;
    for (size_t i = 0; i < pairs.size() && status.ok(); ++i) status = GetPair(context, static_cast<int>(i), &pairs[i]);
    const auto operation = std::make_shared<Operation>(std::move(pairs));
    if (status.ok()) status = operation->Start(request_, StreamOf(context));
    if (status.ok()) return operation->Await(Waiter{context, std::move(done), false});
    context->SetStatus(status);
    done();
  }

 protected:
  virtual absl::Status GetPair(OpKernelContext* context, int index, TensorPair* pair) {
    // No reference is held here yet: TensorFlow lends the input's memory only where it is the only user.
    Tensor* output = nullptr;
    int lent = -1;
    const absl::Status status =
        context->forward_input_or_allocate_output({index}, index, context->input(index).shape(), &output, &lent);
    if (!status.ok()) return status;
    pair->output = *output;
    pair->input = lent == index ? pair->output : context->input(index);
    return status;
  }

  const Request& request() const { return request_; }

 private:
  Request request_;
};

template <int32_t kCollective>
class LikeInputKernel : public CollectiveKernel {
 public:
  explicit LikeInputKernel(OpKernelConstruction* construction) : CollectiveKernel(construction, kCollective) {}
};

class ReducescatterKernel : public CollectiveKernel {
 public:
  explicit ReducescatterKernel(OpKernelConstruction* construction)
      : CollectiveKernel(construction, TFC_REDUCESCATTER) {}

 protected:
  absl::Status GetPair(OpKernelContext* context, int index, TensorPair* pair) override {
    pair->input = context->input(index);
    if (pair->input.dims() == 0)
      return absl::InvalidArgumentError("'" + request().name +
                                        "': needs a tensor with at least one dimension, got a scalar");
    tfc_error error = EmptyError();
    const Communicator communicator = AcquireCommunicator(request().process_set_id, &error);
    tfc_communicator_info info;
    if (communicator == nullptr || !GetInfo(communicator, &info, &error)) return ToStatus(error);
    TensorShape shape = pair->input.shape();
    shape.set_dim(0, RowsOf(info, pair->input.dim_size(0)));
    Tensor* output = nullptr;
    const absl::Status status = context->allocate_output(index, shape, &output);
    if (status.ok()) pair->output = *output;
    return status;
  }
};

// The one table of this process. Never destroyed: threads of the library may finish buckets while the process exits.
// The processor's kernels count their buckets from 1: a handle says on which device a bucket was started.
BucketRegistry<Operation>& StartedBuckets() {
  static auto* const registry = new BucketRegistry<Operation>(int64_t{1} << 62);
  return *registry;
}

// Start hands the tensors over and ends at once; done makes TensorFlow's stream wait. Two ops, as the stream would
// else wait for a bucket before it computes the gradients of the next one.
class BucketStartKernel : public OpKernel {
 public:
  explicit BucketStartKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    AttributeReader reader(construction);
    request_.bucket = ReadBucket(reader);
    request_.process_set_id = request_.bucket->process_set_id;
  }

  void Compute(OpKernelContext* context) override {
    const absl::Status status = StartBucket(context);
    if (!status.ok()) context->SetStatus(status);
  }

 private:
  absl::Status StartBucket(OpKernelContext* context) {
    std::vector<TensorPair> pairs(static_cast<size_t>(context->num_inputs()));
    for (size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].input = context->input(static_cast<int>(i));
      const absl::Status status =
          context->allocate_temp(pairs[i].input.dtype(), pairs[i].input.shape(), &pairs[i].output);
      if (!status.ok()) return status;
    }
    Tensor* handle = nullptr;
    const absl::Status allocated = context->allocate_output(0, TensorShape(), &handle);  // in the host's memory
    if (!allocated.ok()) return allocated;
    const auto operation = std::make_shared<Operation>(std::move(pairs));
    void* stream = StreamOf(context);
    const absl::Status started = operation->Start(request_, stream);
    if (!started.ok()) return started;
    std::vector<std::shared_ptr<Operation>> abandoned;
    const BucketAttributes& bucket = *request_.bucket;
    *static_cast<int64_t*>(handle->data()) =
        StartedBuckets().Add(BucketKey{bucket.process_set_id, bucket.plan, bucket.number}, operation, &abandoned);
    for (const auto& one : abandoned) one->Abandon(stream);
    return absl::OkStatus();
  }

  Request request_;
};

class BucketDoneKernel : public AsyncOpKernel {
 public:
  explicit BucketDoneKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& handle = context->input(0);
    const int64_t number = handle.NumElements() == 1 ? *static_cast<const int64_t*>(handle.data()) : 0;
    const std::shared_ptr<Operation> operation = StartedBuckets().Take(number);
    if (operation != nullptr) return operation->Await(Waiter{context, std::move(done)});
    context->SetStatus(absl::FailedPreconditionError("FAILED_PRECONDITION: " +
                                                     BucketRegistry<Operation>::NotStarted(number, " on GPUs")));
    done();
  }
};

#define TFC_REGISTER(op, kernel, type) \
  REGISTER_KERNEL_BUILDER(Name(op).Device(Device()).Label(kLabel).TypeConstraint("T", tensorflow::type), kernel)
#define TFC_REGISTER_BUCKET(op, kernel, type) \
  REGISTER_KERNEL_BUILDER(                    \
      Name(op).Device(Device()).Label(kLabel).HostMemory("handle").TypeConstraint("T", tensorflow::type), kernel)
#define TFC_REGISTER_ALL(type)                                                        \
  TFC_REGISTER("TfcollectiveAllreduce", LikeInputKernel<TFC_ALLREDUCE>, type);        \
  TFC_REGISTER("TfcollectiveGroupedAllreduce", LikeInputKernel<TFC_ALLREDUCE>, type); \
  TFC_REGISTER("TfcollectiveBroadcast", LikeInputKernel<TFC_BROADCAST>, type);        \
  TFC_REGISTER("TfcollectiveReducescatter", ReducescatterKernel, type);               \
  TFC_REGISTER_BUCKET("TfcollectiveBucketStart", BucketStartKernel, type);            \
  TFC_REGISTER_BUCKET("TfcollectiveBucketDone", BucketDoneKernel, type)

// What NCCL reduces and what TensorFlow keeps on GPUs.
TFC_REGISTER_ALL(DT_HALF);
TFC_REGISTER_ALL(DT_BFLOAT16);
TFC_REGISTER_ALL(DT_FLOAT);
TFC_REGISTER_ALL(DT_DOUBLE);
TFC_REGISTER_ALL(DT_INT64);

}  // namespace
}  // namespace tfc_tf::gpu
