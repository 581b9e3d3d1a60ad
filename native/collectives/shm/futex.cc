#include "collectives/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace tfc {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// steady_clock is CLOCK_MONOTONIC, which the bitset variant takes as an absolute time.
timespec AbsoluteTime(Deadline deadline) {
  const auto since_boot = deadline.when().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  timespec time = {};
  time.tv_sec = static_cast<time_t>(seconds.count());
  time.tv_nsec = static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot - seconds).count());
  return time;
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) {
  const timespec until = AbsoluteTime(deadline);
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tfc
