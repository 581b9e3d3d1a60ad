#include "tf_ops/tensors.h"

namespace tfc_ops {

const char kTypeAttr[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}";

int32_t TfcDtypeOf(TF_DataType type) {
  switch (type) {
    case TF_HALF:
      return TFC_FLOAT16;
    case TF_BFLOAT16:
      return TFC_BFLOAT16;
    case TF_FLOAT:
      return TFC_FLOAT32;
    case TF_DOUBLE:
      return TFC_FLOAT64;
    case TF_INT8:
      return TFC_INT8;
    case TF_INT16:
      return TFC_INT16;
    case TF_INT32:
      return TFC_INT32;
    case TF_INT64:
      return TFC_INT64;
    case TF_UINT8:
      return TFC_UINT8;
    case TF_UINT16:
      return TFC_UINT16;
    case TF_UINT32:
      return TFC_UINT32;
    case TF_UINT64:
      return TFC_UINT64;
    case TF_BOOL:
      return TFC_BOOL;
  }
  return -1;
}

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

int64_t ElementCount(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  return count;
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
  return static_cast<size_t>(ElementCount(shape)) * tfc_dtype_size(TfcDtypeOf(type));
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

}  // namespace tfc_ops
