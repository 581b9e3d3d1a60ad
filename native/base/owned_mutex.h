// A mutex that knows whether the calling thread holds it: a callback under it can be refused instead of deadlocking.
#ifndef TFCOLLECTIVE_BASE_OWNED_MUTEX_H_
#define TFCOLLECTIVE_BASE_OWNED_MUTEX_H_

#include <atomic>
#include <mutex>
#include <thread>

namespace tfc {

// For std::lock_guard.
class OwnedMutex {
 public:
  void lock() {
    mutex_.lock();
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() {
    holder_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool HeldByThisThread() const { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> holder_{};
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_OWNED_MUTEX_H_
