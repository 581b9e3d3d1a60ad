// The one place that knows what stands behind TF_AsyncOpKernelDoneCallback.
#ifndef TFCOLLECTIVE_TF_OPS_ASYNC_DONE_H_
#define TFCOLLECTIVE_TF_OPS_ASYNC_DONE_H_

#include <cstddef>
#include <utility>

#include "tf_ops/tensorflow_c_api.h"

namespace tfc_tf::ops {

// Tells TensorFlow that an asynchronous kernel has ended. Any thread, exactly once.
//
// TensorFlow gives the kernel the address of a `std::function<void()>` that lives on the stack of
// the caller and is gone as soon as the compute function returns; TF_RunAsyncOpKernelDoneCallback
// calls through that address and therefore crashes when it is used later, which is the only time
// when an asynchronous kernel needs it. So the function object itself is copied while it is alive.
// This leans on a detail of TensorFlow (CAsyncOpKernel in tensorflow/c/kernels.cc: the same in 2.15
// and 2.21), and on TensorFlow using libstdc++, whose std::function has looked as below since GCC 5
// (bits/std_function.h). This library may be compiled with another one, as releases are: with libc++,
// whose std::function looks different. `tfcollective check` runs an op that ends later to prove that
// it all still holds.
class AsyncDone {
 public:
  explicit AsyncDone(TF_AsyncOpKernelDoneCallback* done) : AsyncDone(*reinterpret_cast<const Function*>(done)) {}
  AsyncDone(const AsyncDone& other) : AsyncDone(other.function_) {}
  AsyncDone(AsyncDone&& other) noexcept { std::swap(function_, other.function_); }
  AsyncDone& operator=(AsyncDone other) noexcept {
    std::swap(function_, other.function_);
    return *this;
  }
  ~AsyncDone() {
    if (function_.manage != nullptr) function_.manage(function_.held, function_.held, kDestroy);
  }

  // Of one that has not been moved from.
  void operator()() const { function_.call(function_.held); }

 private:
  enum Task { kTypeInfo, kAddress, kClone, kDestroy };

  // libstdc++'s std::function<void()>.
  struct Function {
    // What is called, or where it is. `manage` copies it; what libstdc++ keeps in place may be moved as bytes.
    struct alignas(void*) Held {
      std::byte bytes[2 * sizeof(void*)];
    };
    Held held{};
    bool (*manage)(Held& to, const Held& from, Task task) = nullptr;  // nullptr: it holds nothing
    void (*call)(const Held& held) = nullptr;
  };
  static_assert(sizeof(Function) == 4 * sizeof(void*));

  explicit AsyncDone(const Function& function) {
    if (function.manage == nullptr) return;
    function.manage(function_.held, function.held, kClone);
    function_.manage = function.manage;
    function_.call = function.call;
  }

  Function function_;
};

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_ASYNC_DONE_H_
