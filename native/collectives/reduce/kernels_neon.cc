#include "collectives/reduce/kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

// Every aarch64 processor has NEON, and the compiler uses it for the plain loops of the baseline, too. This table has
// what it does not find: conversions of float16, and stores that bypass the cache.
#define TFC_VECTOR_BYTES 16
#define TFC_KERNELS neon_kernels
#include "collectives/reduce/kernel_loops.h"

namespace tfc {

const KernelTable* NeonKernels() {
  static constexpr KernelTable kTable = neon_kernels::MakeTable("neon");
  return &kTable;
}

}  // namespace tfc

#else

namespace tfc {

const KernelTable* NeonKernels() { return nullptr; }

}  // namespace tfc

#endif
