#include "collectives/reduce/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#include "collectives/reduce/cpu_features.h"

namespace tfc {
namespace avx2_kernels {

extern const KernelTable kTable;

}  // namespace avx2_kernels

const KernelTable* Avx2Kernels() {
  static const bool usable = ReadCpuFeatures().avx2_f16c;
  return usable ? &avx2_kernels::kTable : nullptr;
}

}  // namespace tfc

// Everything from here to the end of the file uses the newer instructions.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define TFC_VECTOR_BYTES 32
#define TFC_KERNELS avx2_kernels
#include "collectives/reduce/kernel_loops.h"

namespace tfc {
namespace avx2_kernels {

constexpr KernelTable kTable = MakeTable("avx2");

}  // namespace avx2_kernels
}  // namespace tfc

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

namespace tfc {

const KernelTable* Avx2Kernels() { return nullptr; }

}  // namespace tfc

#endif
