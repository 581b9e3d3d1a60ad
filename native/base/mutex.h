// Locks, and the names of threads, that clang's thread-safety analysis knows (`make lint` runs it).
//
// A field says which lock guards it, or which thread alone may touch it, with TFC_GUARDED_BY; a function that expects
// its caller to hold a lock, or to be on a thread, says so with TFC_REQUIRES. Other compilers ignore both.
#ifndef TFCOLLECTIVE_BASE_MUTEX_H_
#define TFCOLLECTIVE_BASE_MUTEX_H_

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <thread>

#include "base/deadline.h"

#if defined(__clang__)
#define TFC_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define TFC_THREAD_ANNOTATION(attribute)
#endif

#define TFC_CAPABILITY(kind) TFC_THREAD_ANNOTATION(capability(kind))
#define TFC_SCOPED_CAPABILITY TFC_THREAD_ANNOTATION(scoped_lockable)
// Applies to a field; TFC_PT_GUARDED_BY to the object that the field points to.
#define TFC_GUARDED_BY(capability) TFC_THREAD_ANNOTATION(guarded_by(capability))
#define TFC_PT_GUARDED_BY(capability) TFC_THREAD_ANNOTATION(pt_guarded_by(capability))
// Of a function: its caller holds these, or does not hold them. A lambda has it after its parameters:
// [this]() TFC_REQUIRES(mutex_) { return done_; }
#define TFC_REQUIRES(...) TFC_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TFC_EXCLUDES(...) TFC_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define TFC_ACQUIRE(...) TFC_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TFC_TRY_ACQUIRE(...) TFC_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define TFC_RELEASE(...) TFC_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TFC_ASSERT_CAPABILITY(capability) TFC_THREAD_ANNOTATION(assert_capability(capability))
#define TFC_RETURN_CAPABILITY(capability) TFC_THREAD_ANNOTATION(lock_returned(capability))
#define TFC_NO_THREAD_SAFETY_ANALYSIS TFC_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace tfc {

class TFC_CAPABILITY("mutex") Mutex {
 public:
  void lock() TFC_ACQUIRE() { mutex_.lock(); }
  void unlock() TFC_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Knows whether the calling thread holds it: a callback under it can be refused instead of deadlocking.
class TFC_CAPABILITY("mutex") OwnedMutex {
 public:
  void lock() TFC_ACQUIRE() {
    mutex_.lock();
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() TFC_RELEASE() {
    holder_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool HeldByThisThread() const { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> holder_{};
};

// Holds a mutex as long as it lives, but for the time between unlock and lock.
template <typename AnyMutex>
class TFC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(AnyMutex& mutex) TFC_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller has locked it.
  MutexLock(AnyMutex& mutex, std::adopt_lock_t) TFC_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() TFC_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() TFC_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() TFC_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  AnyMutex& mutex_;
  bool held_ = true;
};

// std::condition_variable waits on the wall clock where glibc lacks pthread_cond_clockwait, as 2.28 does, for which
// wheels are compiled: a clock that is set back would prolong every deadline. This one always waits on the monotonic
// clock.
class CondVar {
 public:
  CondVar() {
    pthread_condattr_t attributes;
    ::pthread_condattr_init(&attributes);
    ::pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    ::pthread_cond_init(&changed_, &attributes);
    ::pthread_condattr_destroy(&attributes);
  }
  ~CondVar() { ::pthread_cond_destroy(&changed_); }
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void NotifyOne() { ::pthread_cond_signal(&changed_); }
  void NotifyAll() { ::pthread_cond_broadcast(&changed_); }

  // Gives the mutex back while it waits. False once the deadline has passed; true may also mean nothing at all.
  bool WaitUntil(Mutex& mutex, Deadline deadline) TFC_REQUIRES(mutex) {
    const timespec until = deadline.Monotonic();
    return ::pthread_cond_timedwait(&changed_, mutex.mutex_.native_handle(), &until) != ETIMEDOUT;
  }
  // Waits until `condition()` holds or the deadline has passed, and returns what `condition()` is then. The analysis
  // checks the condition by its own TFC_REQUIRES(mutex).
  template <typename Condition>
  bool WaitUntil(Mutex& mutex, Deadline deadline, Condition condition)
      TFC_REQUIRES(mutex) TFC_NO_THREAD_SAFETY_ANALYSIS {
    while (!condition())
      if (!WaitUntil(mutex, deadline)) return condition();
    return true;
  }

 private:
  pthread_cond_t changed_;
};

// Its holder may be in a call that never returns: threads that want it too give up at a deadline.
class TFC_CAPABILITY("mutex") TimedMutex {
 public:
  bool TryLockUntil(Deadline deadline) TFC_TRY_ACQUIRE(true) {
    const MutexLock lock(mutex_);
    if (!unlocked_.WaitUntil(mutex_, deadline, [this]() TFC_REQUIRES(mutex_) { return !held_; })) return false;
    held_ = true;
    return true;
  }
  void lock() TFC_ACQUIRE() { TryLockUntil(Deadline::Never()); }
  void unlock() TFC_RELEASE() {
    const MutexLock lock(mutex_);  // notified under it: the next holder may destroy this
    held_ = false;
    unlocked_.NotifyOne();
  }

 private:
  Mutex mutex_;
  CondVar unlocked_;
  bool held_ TFC_GUARDED_BY(mutex_) = false;
};

// "I am the thread that ...": TFC_GUARDED_BY(a role) is of fields that one thread alone touches, without a lock. Costs
// nothing: where that thread enters, AssertHeld says so to the analysis, and TFC_REQUIRES(the role) carries it on.
class TFC_CAPABILITY("thread role") ThreadRole {
 public:
  void AssertHeld() const TFC_ASSERT_CAPABILITY(this) {}
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_MUTEX_H_
