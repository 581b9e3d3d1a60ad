#include "collectives/reduce/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#define TFC_VECTOR_BYTES 16
#else
#define TFC_VECTOR_BYTES 0
#endif

#define TFC_KERNELS baseline_kernels
#include "collectives/reduce/kernel_loops.h"

namespace tfc {

const KernelTable* BaselineKernels() {
  static constexpr KernelTable kTable = baseline_kernels::MakeTable("baseline");
  return &kTable;
}

void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#elif defined(__aarch64__)
  asm volatile("dmb ishst" : : : "memory");
#endif
}

}  // namespace tfc
