// The shapes of the results, as far as TensorFlow can know them before the ops run.
#ifndef TFCOLLECTIVE_TF_OPS_SHAPE_FUNCTIONS_H_
#define TFCOLLECTIVE_TF_OPS_SHAPE_FUNCTIONS_H_

#include "tf_ops/tensorflow_c_api.h"

namespace tfc_tf::ops {

// Output i has the shape of input i.
void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status);
// One output: the input's shape with an unknown number of rows. The input needs a dimension.
void UnknownRows(TF_ShapeInferenceContext* context, TF_Status* status);
// All-to-all: as UnknownRows, and a vector of unknown length. Splits are a vector.
void UnknownRowsAndSplits(TF_ShapeInferenceContext* context, TF_Status* status);
// One output: a scalar.
void Scalar(TF_ShapeInferenceContext* context, TF_Status* status);
// Nothing is known, or there is no output.
void Unknown(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_SHAPE_FUNCTIONS_H_
