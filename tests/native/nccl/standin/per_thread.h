// What a stand-in keeps for each thread. No thread_local: glibc gives the thread-local memory of loaded libraries back
// from other threads, which the thread sanitizer takes for a race.
#ifndef TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_PER_THREAD_H_
#define TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_PER_THREAD_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <mutex>

// The calling thread's own T. By the kernel's number of it: the library's is given again to the next thread as soon as
// one has ended.
template <typename T>
T& OfThisThread() {
  static auto* mutex = new std::mutex();
  static auto* all = new std::map<pid_t, T>();
  std::lock_guard<std::mutex> lock(*mutex);
  return (*all)[static_cast<pid_t>(::syscall(SYS_gettid))];  // gettid() is in glibc 2.30 and newer
}

#endif  // TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_PER_THREAD_H_
