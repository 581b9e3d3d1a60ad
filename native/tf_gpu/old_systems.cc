// Our own, hidden copies of the two symbols that g++ asks for and that systems before glibc 2.32 and GCC 11 lack: with
// them, kernels that were compiled on a newer system load there.
#include <new>

// The headers of libstdc++ read it to leave out atomic operations in a process with one thread. False is always right.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

namespace std {

__attribute__((visibility("hidden"), noreturn)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
