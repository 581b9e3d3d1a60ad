#include "tf_ops/tensors.h"

#include "tf_common/dtypes.h"

namespace tfc_tf::ops {

const char kTypeAttr[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}";

std::vector<int64_t> ShapeOf(const TF_Tensor* tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(TF_NumDims(tensor)));
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = TF_Dim(tensor, static_cast<int>(i));
  return shape;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text + "]";
}

void* DataOf(TF_Tensor* tensor) {
  static char nothing;
  void* data = TF_TensorData(tensor);
  return data != nullptr ? data : &nothing;
}

OpError GetInput(TF_OpKernelContext* context, int index, Tensor* tensor) {
  const TfStatus status = NewTfStatus();
  TF_Tensor* raw = nullptr;
  TF_GetInput(context, index, &raw, status.get());
  tensor->reset(raw);
  return FromTfStatus(status);
}

namespace {

size_t BytesOf(TF_DataType type, const std::vector<int64_t>& shape) {
  size_t bytes = tfc_dtype_size(TfcDtypeOf(type));
  for (const int64_t dimension : shape) bytes *= static_cast<size_t>(dimension);
  return bytes;
}

}  // namespace

OpError AllocateOutput(TF_OpKernelContext* context, int index, TF_DataType type, const std::vector<int64_t>& shape,
                       Tensor* tensor) {
  const TfStatus status = NewTfStatus();
  tensor->reset(TF_AllocateOutput(context, index, type, shape.data(), static_cast<int>(shape.size()),
                                  BytesOf(type, shape), status.get()));
  return FromTfStatus(status);
}

OpError AllocateTemp(TF_OpKernelContext* context, TF_DataType type, const std::vector<int64_t>& shape, Tensor* tensor) {
  const TfStatus status = NewTfStatus();
  TF_AllocatorAttributes attributes{sizeof(TF_AllocatorAttributes), 0};
  tensor->reset(
      TF_AllocateTemp(context, type, shape.data(), static_cast<int>(shape.size()), &attributes, status.get()));
  return FromTfStatus(status);
}

OpError GetInputAndLikeOutput(TF_OpKernelContext* context, int index, TensorPair* pair) {
  OpError error = GetInput(context, index, &pair->input);
  if (!error.ok()) return error;
  const std::vector<int64_t> shape = ShapeOf(pair->input.get());
  pair->input.reset();  // TensorFlow lends the buffer only if this is the last reference besides its own
  const TfStatus status = NewTfStatus();
  int lent = -1;
  pair->output.reset(TF_ForwardInputOrAllocateOutput(context, &index, 1, index, shape.data(),
                                                     static_cast<int>(shape.size()), &lent, status.get()));
  error = FromTfStatus(status);
  if (!error.ok() || lent == index) return error;
  return GetInput(context, index, &pair->input);
}

tfc_span SpanOf(const TensorPair& pair) {
  void* output = DataOf(pair.output.get());
  return tfc_span{pair.input ? DataOf(pair.input.get()) : output, output, TF_TensorElementCount(pair.output.get())};
}

}  // namespace tfc_tf::ops
