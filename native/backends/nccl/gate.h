// Lets one thread pass at a time, and no thread waits for ever: what is done inside may hang in the driver.
#ifndef TFCOLLECTIVE_BACKENDS_NCCL_GATE_H_
#define TFCOLLECTIVE_BACKENDS_NCCL_GATE_H_

#include <condition_variable>
#include <mutex>

#include "base/deadline.h"

namespace tfc {

class Gate {
 public:
  // Holds the gate as long as it lives, if it could be passed before the deadline.
  class Passage {
   public:
    Passage(Gate* gate, Deadline deadline) : gate_(gate), passed_(gate->Enter(deadline)) {}
    ~Passage() {
      if (passed_) gate_->Leave();
    }
    Passage(const Passage&) = delete;
    Passage& operator=(const Passage&) = delete;
    bool passed() const { return passed_; }

   private:
    Gate* const gate_;
    const bool passed_;
  };

 private:
  bool Enter(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!left_.wait_until(lock, deadline.when(), [this] { return !taken_; })) return false;
    taken_ = true;
    return true;
  }
  void Leave() {
    // With the mutex: the thread that comes next may destroy the gate.
    std::lock_guard<std::mutex> lock(mutex_);
    taken_ = false;
    left_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  bool taken_ = false;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BACKENDS_NCCL_GATE_H_
