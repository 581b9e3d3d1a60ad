#include "collectives/reduce/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#include "collectives/reduce/cpu_features.h"

namespace tfc {
namespace avx512_kernels {

extern const KernelTable kTable;

}  // namespace avx512_kernels

const KernelTable* Avx512Kernels() {
  static const bool usable = ReadCpuFeatures().avx512;
  return usable ? &avx512_kernels::kTable : nullptr;
}

}  // namespace tfc

// Everything from here to the end of the file uses the newer instructions.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")
#endif

#define TFC_VECTOR_BYTES 64
#define TFC_KERNELS avx512_kernels
#include "collectives/reduce/kernel_loops.h"

namespace tfc {
namespace avx512_kernels {

constexpr KernelTable kTable = MakeTable("avx512");

}  // namespace avx512_kernels
}  // namespace tfc

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

namespace tfc {

const KernelTable* Avx512Kernels() { return nullptr; }

}  // namespace tfc

#endif
