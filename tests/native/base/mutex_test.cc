#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

namespace tfc {
namespace {

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
