// Stands in for native/tf_gpu/device.h in a TensorFlow without CUDA: the GPU's kernels run on the processor, where the
// attribute _kernel of a node asks for them, over the stand-in of the CUDA driver with its setting host_is_gpu.
#ifndef TFCOLLECTIVE_TF_GPU_DEVICE_H_
#define TFCOLLECTIVE_TF_GPU_DEVICE_H_

#include <tensorflow/core/framework/op_kernel.h>

namespace tfc_tf::gpu {

inline const char* Device() { return tensorflow::DEVICE_CPU; }
inline constexpr char kLabel[] = "standin";

inline void* StreamOf(tensorflow::OpKernelContext*) { return nullptr; }

}  // namespace tfc_tf::gpu

#endif  // TFCOLLECTIVE_TF_GPU_DEVICE_H_
