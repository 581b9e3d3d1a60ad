// One translation unit: TensorFlow's headers cost far more to compile than all of this.
#include "tf_gpu/kernels.cc"    // NOLINT
#include "tf_gpu/operation.cc"  // NOLINT
