// What a stand-in keeps for each thread. No thread_local: glibc gives the thread-local memory of loaded libraries back
// from other threads, which the thread sanitizer takes for a race.
#ifndef TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_PER_THREAD_H_
#define TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_PER_THREAD_H_

#include <map>
#include <mutex>
#include <thread>

// The calling thread's own T.
template <typename T>
T& OfThisThread() {
  static auto* mutex = new std::mutex();
  static auto* all = new std::map<std::thread::id, T>();
  std::lock_guard<std::mutex> lock(*mutex);
  return (*all)[std::this_thread::get_id()];
}

#endif  // TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_PER_THREAD_H_
