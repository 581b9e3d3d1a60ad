// All-reduce (of one tensor or a group), broadcast and barrier: results look like their inputs.
#include <memory>

#include "tf_ops/call.h"
#include "tf_ops/kernel_registration.h"
#include "tf_ops/registration.h"

namespace tfc_tf::ops {
namespace {

// Every input goes, as a span, to the output of the same number.
class LikeInputsCall : public Call {
 public:
  using Call::Call;

 protected:
  OpError PreparePairs(int32_t collective) {
    const int count = TF_NumInputs(context());
    pairs().resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      TensorPair& pair = pairs()[static_cast<size_t>(i)];
      const OpError error = GetInputAndLikeOutput(context(), i, &pair);
      if (!error.ok()) return error;
      spans().push_back(SpanOf(pair));
    }
    Describe(collective, TF_TensorType(pairs()[0].output.get()));
    if (count == 1) UseShape(ShapeOf(pairs()[0].output.get()));
    return OpError();
  }
};

class AllreduceCall : public LikeInputsCall {
 public:
  AllreduceCall(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done, const ReductionAttributes& reduction)
      : LikeInputsCall(context, done), reduction_(reduction) {}

 protected:
  OpError Prepare(const tfc_communicator_info&) override {
    UseReduction(reduction_);
    return PreparePairs(TFC_ALLREDUCE);
  }

 private:
  const ReductionAttributes& reduction_;
};

class BroadcastCall : public LikeInputsCall {
 public:
  BroadcastCall(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done, int32_t root)
      : LikeInputsCall(context, done), root_(root) {}

 protected:
  OpError Prepare(const tfc_communicator_info&) override {
    request().root = root_;
    return PreparePairs(TFC_BROADCAST);
  }

 private:
  const int32_t root_;
};

class BarrierCall : public Call {
 public:
  using Call::Call;

 protected:
  OpError Prepare(const tfc_communicator_info&) override {
    request().collective = TFC_BARRIER;
    return OpError();
  }
};

class AllreduceKernel {
 public:
  explicit AllreduceKernel(AttributeReader& reader) : common_(ReadCommon(reader)), reduction_(ReadReduction(reader)) {}
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    Call::Start(std::make_unique<AllreduceCall>(context, done, reduction_), common_);
  }

 private:
  const CommonAttributes common_;
  const ReductionAttributes reduction_;
};

class BroadcastKernel {
 public:
  explicit BroadcastKernel(AttributeReader& reader) : common_(ReadCommon(reader)), root_(reader.Int("root_rank")) {}
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    Call::Start(std::make_unique<BroadcastCall>(context, done, root_), common_);
  }

 private:
  const CommonAttributes common_;
  const int32_t root_;
};

class BarrierKernel {
 public:
  explicit BarrierKernel(AttributeReader& reader) : common_(ReadCommon(reader)) {}
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    Call::Start(std::make_unique<BarrierCall>(context, done), common_);
  }

 private:
  const CommonAttributes common_;
};

}  // namespace

std::string RegisterCollectiveKernels() {
  std::string error = RegisterAsyncKernel<AllreduceKernel>("TfcollectiveAllreduce");
  if (error.empty()) error = RegisterAsyncKernel<AllreduceKernel>("TfcollectiveGroupedAllreduce");
  if (error.empty()) error = RegisterAsyncKernel<BroadcastKernel>("TfcollectiveBroadcast");
  if (error.empty()) error = RegisterAsyncKernel<BarrierKernel>("TfcollectiveBarrier");
  return error;
}

}  // namespace tfc_tf::ops
