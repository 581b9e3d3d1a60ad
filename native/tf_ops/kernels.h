// The kernels: what runs on the CPU for each op. TensorFlow's threads never wait in them.
#ifndef TFCOLLECTIVE_TF_OPS_KERNELS_H_
#define TFCOLLECTIVE_TF_OPS_KERNELS_H_

#include <string>

namespace tfc_ops {

// Each registers the kernels of its file with TensorFlow; returns what went wrong, or "".
std::string RegisterCollectiveKernels();  // same shape in and out, and the barrier
std::string RegisterRowKernels();         // all-gather, reduce-scatter, all-to-all
std::string RegisterBucketKernels();      // start and done
std::string RegisterJoinKernel();

}  // namespace tfc_ops

#endif  // TFCOLLECTIVE_TF_OPS_KERNELS_H_
