#include "collectives/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace tfc {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) {
  const timespec until = deadline.Monotonic();  // the bitset variant takes an absolute time
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tfc
