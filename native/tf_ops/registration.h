// Registers ops and kernels with TensorFlow when the library is loaded. Each function returns an error text, or "".
#ifndef TFCOLLECTIVE_TF_OPS_REGISTRATION_H_
#define TFCOLLECTIVE_TF_OPS_REGISTRATION_H_

#include <string>

namespace tfc_tf::ops {

// The ops: names, inputs, outputs and attributes.
std::string RegisterOps();

// The kernels: what runs on the CPU for each op. TensorFlow's threads never wait in them.
std::string RegisterCollectiveKernels();  // same shape in and out, and the barrier
std::string RegisterRowKernels();         // all-gather, reduce-scatter, all-to-all
std::string RegisterBucketKernels();      // start and done
std::string RegisterJoinKernel();

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_REGISTRATION_H_
