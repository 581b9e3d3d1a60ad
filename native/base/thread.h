// Starts the library's own threads.
#ifndef TFCOLLECTIVE_BASE_THREAD_H_
#define TFCOLLECTIVE_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "base/status.h"

namespace tfc {

// Runs `body` on a new thread called `name` (at most 15 characters). Signals are for the threads of
// the program, so they are blocked there, but for those that the thread itself causes by a fault.
// RESOURCE_EXHAUSTED where the system gives no thread.
Result<std::thread> StartThread(const char* name, std::function<void()> body);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_THREAD_H_
