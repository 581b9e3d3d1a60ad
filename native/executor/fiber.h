// A fiber: a function with a stack of its own that can stop in the middle and go on later, on the
// same thread. Lets blocking collective code of several channels share the progress thread.
#ifndef TFCOLLECTIVE_EXECUTOR_FIBER_H_
#define TFCOLLECTIVE_EXECUTOR_FIBER_H_

#include <functional>
#include <memory>

#include "base/status.h"

namespace tfc {

class Fiber {
 public:
  // Maps the stack; runs nothing.
  static Result<std::unique_ptr<Fiber>> Create(std::function<void()> body);
  ~Fiber();  // the body must have ended or never have begun
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it calls Yield or ends. Always from the same thread.
  void Resume();
  // From inside the body: back to the caller of Resume.
  void Yield();
  bool finished() const;

 private:
  struct Impl;
  explicit Fiber(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_FIBER_H_
