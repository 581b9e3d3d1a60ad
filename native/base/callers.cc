#include "base/callers.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace tfc {
namespace {

std::atomic<bool> others_call{false};

// Threads of TensorFlow's pools run what the program's threads have asked for. Python does not know them; where there
// is no Python, nothing tells them from the program's.
bool WorksForTheMainThread() {
  if (::syscall(SYS_gettid) == ::getpid()) return true;
  using ThisThread = void* (*)();  // needs no lock of Python's
  static const auto this_thread = reinterpret_cast<ThisThread>(::dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  return this_thread != nullptr && this_thread() == nullptr;
}

}  // namespace

void NoteCaller() {
  static thread_local bool noted = false;
  if (noted) return;
  noted = true;
  if (!WorksForTheMainThread()) others_call.store(true);
}

void NoteUnorderedCalls() { others_call.store(true); }

bool OneProgramThreadCalls() { return !others_call.load(); }

double ProcessorTime() {
  timespec time = {};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0.0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace tfc
