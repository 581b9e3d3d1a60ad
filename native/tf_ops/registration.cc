// Loading the library registers its ops: that is how tf.load_op_library finds them.
#include "tf_ops/registration.h"

#include <cstdio>

namespace tfc_tf::ops {
namespace {

bool RegisterEverything() {
  std::string error = RegisterOps();
  if (error.empty()) error = RegisterCollectiveKernels();
  if (error.empty()) error = RegisterRowKernels();
  if (error.empty()) error = RegisterBucketKernels();
  if (error.empty()) error = RegisterJoinKernel();
  // There is no caller to tell: TensorFlow's loader only sees which ops are there afterwards.
  if (!error.empty()) std::fprintf(stderr, "tfcollective: cannot register with TensorFlow: %s\n", error.c_str());
  return error.empty();
}

[[maybe_unused]] const bool registered = RegisterEverything();

}  // namespace
}  // namespace tfc_tf::ops
