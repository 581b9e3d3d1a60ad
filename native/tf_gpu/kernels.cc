// TensorFlow's kernels on GPUs for the ops of _tf_ops.so. In C++, because only there TensorFlow tells its stream: so
// there is one such library for each version of TensorFlow. The host never waits in them, neither for the GPU nor for
// a peer. All-gather, all-to-all, barrier and join have none: TensorFlow runs those on the processor.
#include <tensorflow/core/framework/op_kernel.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_gpu/buckets.h"
#include "tf_gpu/device.h"
#include "tf_gpu/operation.h"
#include "tf_ops/factor.h"

namespace tfc_gpu {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;

template <typename Value>
void Read(OpKernelConstruction* construction, const char* name, Value* value) {
  const absl::Status status = construction->GetAttr(name, value);
  if (!status.ok()) construction->CtxFailure(status);
}

void ReadFactor(OpKernelConstruction* construction, const char* name, double* factor) {
  std::string text;
  Read(construction, name, &text);
  if (!construction->status().ok()) return;
  const std::optional<double> parsed = tfc_ops::ParseFactor(text);
  if (!parsed) construction->CtxFailure(absl::InvalidArgumentError(tfc_ops::BadFactor(name, text)));
  *factor = parsed.value_or(1.0);
}

void ReadReduction(OpKernelConstruction* construction, Wish* wish) {
  Read(construction, "op", &wish->op);
  ReadFactor(construction, "prescale", &wish->prescale);
  ReadFactor(construction, "postscale", &wish->postscale);
}

// FNV-1a of a plan's signature, without what follows a tab in a line: see tfc_plan_options.
uint64_t Hash(const std::string& signature) {
  uint64_t hash = 0xcbf29ce484222325u;
  bool label = false;
  for (const char byte : signature) {
    label = byte != '\n' && (label || byte == '\t');
    if (!label) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  }
  return hash;
}

// All-reduce of one tensor or several, broadcast and reduce-scatter.
class CollectiveKernel : public AsyncOpKernel {
 public:
  CollectiveKernel(OpKernelConstruction* construction, int32_t collective) : AsyncOpKernel(construction) {
    wish_.collective = collective;
    Read(construction, "tensor_name", &wish_.name);
    Read(construction, "process_set_id", &wish_.process_set_id);
    Read(construction, "timeout", &wish_.timeout_s);
    if (collective == TFC_BROADCAST) {
      Read(construction, "root_rank", &wish_.root);
    } else {
      ReadReduction(construction, &wish_);
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::vector<TensorPair> pairs(static_cast<size_t>(context->num_inputs()));
    absl::Status status;
    for (size_t i = 0; i < pairs.size() && status.ok(); ++i) status = GetPair(context, static_cast<int>(i), &pairs[i]);
    const auto operation = std::make_shared<Operation>(std::move(pairs));
    if (status.ok()) status = operation->Start(wish_, nullptr, StreamOf(context));
    if (status.ok()) return operation->Await(Waiter{context, std::move(done), false});
    context->SetStatus(status);
    done();
  }

 protected:
  virtual absl::Status GetPair(OpKernelContext* context, int index, TensorPair* pair) {
    // No reference of ours yet: TensorFlow lends the input's memory only where nobody else looks at it.
    Tensor* output = nullptr;
    int lent = -1;
    const absl::Status status =
        context->forward_input_or_allocate_output({index}, index, context->input(index).shape(), &output, &lent);
    if (!status.ok()) return status;
    pair->output = *output;
    pair->input = lent == index ? pair->output : context->input(index);
    return status;
  }

  const Wish& wish() const { return wish_; }

 private:
  Wish wish_;
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
      return absl::InvalidArgumentError("'" + wish().name +
                                        "': needs a tensor with at least one dimension, got a scalar");
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    const absl::Status known = InfoOf(wish().process_set_id, &info);
    if (!known.ok()) return known;
    const int64_t rows = pair->input.dim_size(0);
    TensorShape shape = pair->input.shape();
    shape.set_dim(0, rows / info.size + (info.rank < rows % info.size ? 1 : 0));
    Tensor* output = nullptr;
    const absl::Status status = context->allocate_output(index, shape, &output);
    if (status.ok()) pair->output = *output;
    return status;
  }

 private:
  static absl::Status InfoOf(int32_t process_set_id, tfc_communicator_info* info) {
    tfc_error error{};
    error.struct_size = sizeof(error);
    tfc_communicator* communicator = nullptr;
    if (tfc_process_set_acquire(process_set_id, &communicator, &error) != TFC_OK) return ToStatus(error);
    const tfc_code code = tfc_communicator_get_info(communicator, info, &error);
    tfc_communicator_release(communicator);
    return code == TFC_OK ? absl::OkStatus() : ToStatus(error);
  }
};

// Start hands the tensors over and ends at once; done makes TensorFlow's stream wait. Two ops, as the stream would
// else wait for a bucket before it computes the gradients of the next one.
class BucketStartKernel : public OpKernel {
 public:
  explicit BucketStartKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    Read(construction, "plan", &plan_);
    Read(construction, "bucket", &bucket_);
    Read(construction, "process_set_id", &wish_.process_set_id);
    Read(construction, "timeout", &wish_.timeout_s);
    ReadReduction(construction, &wish_);
    Read(construction, "signature", &signature_);
    wish_.name = plan_ + "/bucket " + std::to_string(bucket_);
    wish_.agreement = Hash(signature_);
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
    const absl::Status started = operation->Start(wish_, told_.exchange(true) ? nullptr : signature_.c_str(), stream);
    if (!started.ok()) return started;
    *static_cast<int64_t*>(handle->data()) =
        Buckets::Get().Add(BucketKey{wish_.process_set_id, plan_, bucket_}, operation, stream);
    return absl::OkStatus();
  }

  std::string plan_;
  int32_t bucket_ = 0;
  Wish wish_;
  std::string signature_;
  std::atomic<bool> told_{false};  // it is long, and people need it once
};

class BucketDoneKernel : public AsyncOpKernel {
 public:
  explicit BucketDoneKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& handle = context->input(0);
    const int64_t number = handle.NumElements() == 1 ? *static_cast<const int64_t*>(handle.data()) : 0;
    const std::shared_ptr<Operation> operation = Buckets::Get().Take(number);
    if (operation != nullptr) return operation->Await(Waiter{context, std::move(done)});
    context->SetStatus(absl::FailedPreconditionError(
        "FAILED_PRECONDITION: there is no started bucket with the handle " + std::to_string(number) +
        " on GPUs: each start has one done, on the same device, before its bucket is started " +
        std::to_string(Buckets::kKept) + " times more"));
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
}  // namespace tfc_gpu
