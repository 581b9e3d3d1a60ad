#include "tf_ops/shape_functions.h"

#include <memory>

namespace tfc_tf::ops {
namespace {

struct ShapeDeleter {
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};
using Shape = std::unique_ptr<TF_ShapeHandle, ShapeDeleter>;

Shape NewShape() { return Shape(TF_NewShapeHandle()); }

Shape VectorOfUnknownLength(TF_ShapeInferenceContext* context) {
  return Shape(TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));  // -1: TensorFlow's "unknown"
}

bool Failed(TF_Status* status) { return TF_GetCode(status) != TF_OK; }

}  // namespace

void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape = NewShape();
  const auto inputs = static_cast<int>(TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && !Failed(status); ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (!Failed(status)) TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void UnknownRows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape input = NewShape(), checked = NewShape(), row = NewShape(), result = NewShape();
  TF_ShapeInferenceContextGetInput(context, 0, input.get(), status);
  if (Failed(status)) return;
  if (TF_ShapeInferenceContextRankKnown(context, input.get()) == 0) {
    return TF_ShapeInferenceContextSetOutput(context, 0, input.get(), status);
  }
  TF_ShapeInferenceContextWithRankAtLeast(context, input.get(), 1, checked.get(), status);
  if (Failed(status)) return;
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1, TF_ShapeInferenceContextRank(context, checked.get()),
                                   row.get(), status);
  if (Failed(status)) return;
  const Shape rows = VectorOfUnknownLength(context);
  TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), row.get(), result.get(), status);
  if (!Failed(status)) TF_ShapeInferenceContextSetOutput(context, 0, result.get(), status);
}

void UnknownRowsAndSplits(TF_ShapeInferenceContext* context, TF_Status* status) {
  UnknownRows(context, status);
  if (Failed(status)) return;
  const Shape splits = NewShape(), checked = NewShape();
  TF_ShapeInferenceContextGetInput(context, 1, splits.get(), status);
  if (Failed(status)) return;
  TF_ShapeInferenceContextWithRank(context, splits.get(), 1, checked.get(), status);
  if (Failed(status)) return;
  const Shape received = VectorOfUnknownLength(context);
  TF_ShapeInferenceContextSetOutput(context, 1, received.get(), status);
}

void Scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void Unknown(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

}  // namespace tfc_tf::ops
