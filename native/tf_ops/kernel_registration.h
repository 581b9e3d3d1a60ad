// From a C++ kernel class to TensorFlow's C callbacks.
#ifndef TFCOLLECTIVE_TF_OPS_KERNEL_REGISTRATION_H_
#define TFCOLLECTIVE_TF_OPS_KERNEL_REGISTRATION_H_

#include <memory>
#include <string>

#include "tf_ops/attributes.h"
#include "tf_ops/tensorflow_c_api.h"
#include "tf_ops/tf_status.h"

namespace tfc_tf::ops {

// `Kernel` is made from an AttributeReader&.
template <typename Kernel>
void* CreateKernel(TF_OpKernelConstruction* construction) {
  AttributeReader reader(construction);
  auto kernel = std::make_unique<Kernel>(reader);
  return reader.Finish() ? kernel.release() : nullptr;
}

template <typename Kernel>
void DeleteKernel(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

inline std::string Register(const char* op, TF_KernelBuilder* builder) {
  const TfStatus status = NewTfStatus();
  TF_RegisterKernelBuilder(op, builder, status.get());
  const OpError error = FromTfStatus(status);
  return error.ok() ? "" : std::string(op) + ": " + error.message;
}

// Kernel::Compute(TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*) const returns at once.
template <typename Kernel>
std::string RegisterAsyncKernel(const char* op) {
  const auto compute = [](void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
    static_cast<const Kernel*>(kernel)->Compute(context, done);
  };
  return Register(op, TF_NewAsyncKernelBuilder(op, "CPU", &CreateKernel<Kernel>, compute, &DeleteKernel<Kernel>));
}

// OpError Kernel::Compute(TF_OpKernelContext*) const.
template <typename Kernel>
std::string RegisterKernel(const char* op) {
  const auto compute = [](void* kernel, TF_OpKernelContext* context) {
    const OpError error = static_cast<const Kernel*>(kernel)->Compute(context);
    if (!error.ok()) TF_OpKernelContext_Failure(context, ToTfStatus(error).get());
  };
  return Register(op, TF_NewKernelBuilder(op, "CPU", &CreateKernel<Kernel>, compute, &DeleteKernel<Kernel>));
}

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_KERNEL_REGISTRATION_H_
