// TensorFlow tensors with an owner, their types and shapes.
#ifndef TFCOLLECTIVE_TF_OPS_TENSORS_H_
#define TFCOLLECTIVE_TF_OPS_TENSORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/tensorflow_c_api.h"
#include "tf_ops/tf_status.h"
#include "tfcollective/tfcollective.h"

namespace tfc_tf::ops {

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
// A counted reference of a tensor's buffer.
using Tensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

// Both sides of one operand.
struct TensorPair {
  Tensor input;
  Tensor output;
};

// The ops' attribute: "T: {half, ...}": every type that has a tfc_dtype.
extern const char kTypeAttr[];

std::vector<int64_t> ShapeOf(const TF_Tensor* tensor);
std::string ShapeText(const std::vector<int64_t>& shape);  // "[2,3]"

// Never NULL, also for an empty tensor.
void* DataOf(TF_Tensor* tensor);

OpError GetInput(TF_OpKernelContext* context, int index, Tensor* tensor);
OpError AllocateOutput(TF_OpKernelContext* context, int index, TF_DataType type, const std::vector<int64_t>& shape,
                       Tensor* tensor);
// Memory that no output is bound to yet.
OpError AllocateTemp(TF_OpKernelContext* context, TF_DataType type, const std::vector<int64_t>& shape, Tensor* tensor);
// Output `index` with the shape of input `index`. TensorFlow lends the input's own buffer where
// nothing else reads it; then `input` stays empty and the output holds the data.
OpError GetInputAndLikeOutput(TF_OpKernelContext* context, int index, TensorPair* pair);

tfc_span SpanOf(const TensorPair& pair);

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_TENSORS_H_
