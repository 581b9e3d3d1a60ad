// Makes a system call fail, as a container's seccomp profile, a sysctl or a full memory would: for tests.
#ifndef TFCOLLECTIVE_TESTING_REFUSED_CALLS_H_
#define TFCOLLECTIVE_TESTING_REFUSED_CALLS_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>

namespace tfc {

// From now on the call gives `error` on this thread and on the threads that it starts; there is no way back. With
// `at_zero_too` false, calls whose third argument is zero go on working. False if the system has no seccomp.
inline bool RefuseCall(int number, int error, bool at_zero_too = true) {
  const auto third = static_cast<uint32_t>(offsetof(seccomp_data, args) + 2 * sizeof(uint64_t));
  const auto unless_zero = static_cast<uint8_t>(at_zero_too ? 0 : 1);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, third),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, unless_zero, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_REFUSED_CALLS_H_
