// All-gather, reduce-scatter and all-to-all: they deal in rows, so results have a first dimension of
// their own.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "tf_common/communicator.h"
#include "tf_ops/call.h"
#include "tf_ops/kernel_registration.h"
#include "tf_ops/registration.h"

namespace tfc_tf::ops {
namespace {

class RowsCall : public Call {
 public:
  using Call::Call;

 protected:
  // Gets input 0 and describes `collective` on it.
  OpError PrepareInput(int32_t collective) {
    pairs().resize(1);
    const OpError error = GetInput(context(), 0, &pairs()[0].input);
    if (!error.ok()) return error;
    TF_Tensor* input = pairs()[0].input.get();
    shape_of_input_ = ShapeOf(input);
    type_ = TF_TensorType(input);
    if (shape_of_input_.empty()) return OpError::Invalid("needs a tensor with at least one dimension, got a scalar");
    Describe(collective, type_);
    UseShape(shape_of_input_);
    spans().push_back(tfc_span{DataOf(input), nullptr, TF_TensorElementCount(input)});
    return OpError();
  }

  int64_t input_rows() const { return shape_of_input_[0]; }

  // Output 0: `rows` rows like those of the input.
  OpError AllocateRows(int64_t rows) {
    std::vector<int64_t> shape = shape_of_input_;
    shape[0] = rows;
    return AllocateOutput(context(), 0, type_, shape, &pairs()[0].output);
  }

  TF_Tensor* output() { return pairs()[0].output.get(); }

 private:
  std::vector<int64_t> shape_of_input_;
  TF_DataType type_ = TF_FLOAT;
};

// The result's size is known once all ranks have sent theirs: the engine asks for the memory then.
class GatheringCall : public RowsCall {
 public:
  using RowsCall::RowsCall;

 protected:
  OpError PrepareGathering(int32_t collective) {
    request().allocate = &GatheringCall::Allocate;
    request().allocate_user = this;
    return PrepareInput(collective);
  }
  OpError Complete() override { return allocation_; }
  virtual OpError RowsKnown(const std::vector<int64_t>&) { return OpError(); }

 private:
  static void* Allocate(void* user, const int64_t* rows, int32_t size) {
    auto* call = static_cast<GatheringCall*>(user);
    const std::vector<int64_t> received(rows, rows + size);
    call->allocation_ = call->AllocateRows(std::accumulate(received.begin(), received.end(), int64_t{0}));
    if (call->allocation_.ok()) call->allocation_ = call->RowsKnown(received);
    return call->allocation_.ok() ? DataOf(call->output()) : nullptr;
  }

  OpError allocation_;
};

class AllgatherCall : public GatheringCall {
 public:
  using GatheringCall::GatheringCall;

 protected:
  OpError Prepare(const tfc_communicator_info&) override { return PrepareGathering(TFC_ALLGATHER); }
};

class AlltoallCall : public GatheringCall {
 public:
  using GatheringCall::GatheringCall;

 protected:
  OpError Prepare(const tfc_communicator_info& info) override {
    OpError error = PrepareGathering(TFC_ALLTOALL);
    if (!error.ok()) return error;
    Tensor splits;
    error = GetInput(context(), 1, &splits);
    if (!error.ok()) return error;
    return UseSplits(splits.get(), info.size);
  }

  OpError RowsKnown(const std::vector<int64_t>& rows) override {
    const OpError error =
        AllocateOutput(context(), 1, TF_INT64, {static_cast<int64_t>(rows.size())}, &received_splits_);
    if (error.ok()) std::copy(rows.begin(), rows.end(), static_cast<int64_t*>(DataOf(received_splits_.get())));
    return error;
  }

  void DropTensors() override {
    GatheringCall::DropTensors();
    received_splits_.reset();
  }

 private:
  // No splits at all ask for equal parts.
  OpError UseSplits(TF_Tensor* splits, int32_t size) {
    const std::vector<int64_t> shape = ShapeOf(splits);
    if (shape.size() != 1) return OpError::Invalid("splits must be a vector, got the shape " + ShapeText(shape));
    if (shape[0] == 0) return OpError();
    if (shape[0] != size) {
      return OpError::Invalid("got " + std::to_string(shape[0]) + " splits for " + std::to_string(size) + " ranks");
    }
    const auto* first = static_cast<const int64_t*>(DataOf(splits));
    splits_.assign(first, first + size);
    request().splits = splits_.data();
    return OpError();
  }

  std::vector<int64_t> splits_;
  Tensor received_splits_;
};

class ReducescatterCall : public RowsCall {
 public:
  ReducescatterCall(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done,
                    const ReductionAttributes& reduction)
      : RowsCall(context, done), reduction_(reduction) {}

 protected:
  OpError Prepare(const tfc_communicator_info& info) override {
    UseReduction(reduction_);
    OpError error = PrepareInput(TFC_REDUCESCATTER);
    if (!error.ok()) return error;
    error = AllocateRows(RowsOf(info, input_rows()));
    if (error.ok()) spans()[0].output = DataOf(output());
    return error;
  }

 private:
  const ReductionAttributes& reduction_;
};

template <typename CallType>
class RowKernel {
 public:
  explicit RowKernel(AttributeReader& reader) : common_(ReadCommon(reader)) {}
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    Call::Start(std::make_unique<CallType>(context, done), common_);
  }

 private:
  const CommonAttributes common_;
};

class ReducescatterKernel {
 public:
  explicit ReducescatterKernel(AttributeReader& reader)
      : common_(ReadCommon(reader)), reduction_(ReadReduction(reader)) {}
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    Call::Start(std::make_unique<ReducescatterCall>(context, done, reduction_), common_);
  }

 private:
  const CommonAttributes common_;
  const ReductionAttributes reduction_;
};

}  // namespace

std::string RegisterRowKernels() {
  std::string error = RegisterAsyncKernel<RowKernel<AllgatherCall>>("TfcollectiveAllgather");
  if (error.empty()) error = RegisterAsyncKernel<RowKernel<AlltoallCall>>("TfcollectiveAlltoall");
  if (error.empty()) error = RegisterAsyncKernel<ReducescatterKernel>("TfcollectiveReducescatter");
  return error;
}

}  // namespace tfc_tf::ops
