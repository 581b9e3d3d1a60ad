// A hint for loops that wait: the processor may give its resources to the core's other thread.
#ifndef TFCOLLECTIVE_BASE_PAUSE_H_
#define TFCOLLECTIVE_BASE_PAUSE_H_

namespace tfc {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_PAUSE_H_
