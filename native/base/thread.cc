#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <utility>

namespace tfc {

Result<std::thread> StartThread(const char* name, std::function<void()> body) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  std::thread thread;
  Status status;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    status = Status(Code::kResourceExhausted, std::string("no thread '") + name + "': " + error.what(), kNoPeer,
                    error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) return status;
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace tfc
