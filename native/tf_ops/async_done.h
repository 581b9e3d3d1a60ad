// The one place that knows what stands behind TF_AsyncOpKernelDoneCallback.
#ifndef TFCOLLECTIVE_TF_OPS_ASYNC_DONE_H_
#define TFCOLLECTIVE_TF_OPS_ASYNC_DONE_H_

#include <functional>

#include "tf_ops/tensorflow_c_api.h"

namespace tfc_tf::ops {

// Tells TensorFlow that an asynchronous kernel has ended. Any thread, exactly once.
//
// TensorFlow gives the kernel the address of a `std::function<void()>` that lives on the stack of
// the caller and is gone as soon as the compute function returns; TF_RunAsyncOpKernelDoneCallback
// calls through that address and therefore crashes when it is used later, which is the only time
// when an asynchronous kernel needs it. So the function object itself is copied while it is alive.
// This leans on a detail of TensorFlow (CAsyncOpKernel in tensorflow/c/kernels.cc: the same in 2.15
// and 2.21) and on both sides using libstdc++'s std::function, whose layout has been fixed since
// GCC 5. `tfcollective check` runs an op to prove that it still holds.
class AsyncDone {
 public:
  explicit AsyncDone(TF_AsyncOpKernelDoneCallback* done) : function_(*reinterpret_cast<std::function<void()>*>(done)) {}

  void operator()() const { function_(); }

 private:
  std::function<void()> function_;
};

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_ASYNC_DONE_H_
