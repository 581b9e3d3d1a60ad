#include "base/mutex.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <ctime>
#include <thread>

// glibc 2.28, for which wheels are compiled, lacks it, and the C++ library takes the wall clock instead.
static bool g_needs_a_newer_glibc = false;
extern "C" int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*) {
  g_needs_a_newer_glibc = true;
  return ETIMEDOUT;
}

namespace tfc {
namespace {

TEST(CondVarTest, WaitsDoNotDependOnTheWallClock) {
  Mutex mutex;
  CondVar changed;
  const MutexLock lock(mutex);
  EXPECT_FALSE(changed.WaitUntil(mutex, Deadline::After(0.001), [] { return false; }));
  EXPECT_FALSE(g_needs_a_newer_glibc);
}

TEST(CondVarTest, ADeadlineMayLieBeforeTheClockBegan) {
  Mutex mutex;
  CondVar changed;
  const MutexLock lock(mutex);
  EXPECT_FALSE(changed.WaitUntil(mutex, Deadline::At(Deadline::Clock::time_point(std::chrono::seconds(-1)))));
}

TEST(CondVarTest, AWaitWithoutDeadlineSleepsUntilItIsNotified) {
  Mutex mutex;
  CondVar changed;
  bool done = false;
  std::thread other([&] {
    const MutexLock lock(mutex);
    done = true;
    changed.NotifyAll();
  });
  {
    const MutexLock lock(mutex);
    EXPECT_TRUE(changed.WaitUntil(mutex, Deadline::Never(), [&] { return done; }));
  }
  other.join();
}

TEST(TimedMutexTest, AThreadGivesUpAtItsDeadlineWhileAnotherHoldsIt) {
  TimedMutex mutex;
  bool locked = true;
  const auto lock_briefly = [&] {
    locked = mutex.TryLockUntil(Deadline::After(0.02));
    if (locked) mutex.unlock();
  };
  {
    const MutexLock held(mutex);
    std::thread(lock_briefly).join();
  }
  EXPECT_FALSE(locked);
  lock_briefly();
  EXPECT_TRUE(locked);
}

TEST(TimedMutexTest, AThreadThatWaitsIsNextOnceItIsUnlocked) {
  TimedMutex mutex;
  mutex.lock();
  bool locked = false;
  std::thread other([&] {
    locked = mutex.TryLockUntil(Deadline::After(60));
    if (locked) mutex.unlock();
  });
  mutex.unlock();
  other.join();
  EXPECT_TRUE(locked);
}

}  // namespace
}  // namespace tfc
