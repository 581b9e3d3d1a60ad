// Sleeping on a word of memory that other processes may share.
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_FUTEX_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "base/deadline.h"

namespace tfc {

// Returns when woken, when `word` is not `expected`, at the deadline, or for no reason.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline);

// Wakes all who sleep on `word`.
void FutexWakeAll(const std::atomic<uint32_t>& word);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_FUTEX_H_
