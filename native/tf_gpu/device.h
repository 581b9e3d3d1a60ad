// The device on which the kernels run. Tests have another file of this name, which puts them on the processor.
#ifndef TFCOLLECTIVE_TF_GPU_DEVICE_H_
#define TFCOLLECTIVE_TF_GPU_DEVICE_H_

#include <tensorflow/core/framework/op_kernel.h>
#include <xla/stream_executor/stream.h>

namespace tfc_tf::gpu {

inline const char* Device() { return tensorflow::DEVICE_GPU; }
inline constexpr char kLabel[] = "";

// The stream on which TensorFlow's GPU computes: a CUstream. TensorFlow's C API does not give it.
inline void* StreamOf(tensorflow::OpKernelContext* context) {
  return context->op_device_context()->stream()->platform_specific_handle().stream;
}

}  // namespace tfc_tf::gpu

#endif  // TFCOLLECTIVE_TF_GPU_DEVICE_H_
