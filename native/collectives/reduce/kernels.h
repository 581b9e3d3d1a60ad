// The inner loops of reduce/: one table for each instruction set, chosen at run time.
//
// Every table gives bitwise equal results: the loops do the same operations on each element, in the
// same order, and nothing is contracted. (Only the payload of a NaN made from two NaNs may differ.)
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_KERNELS_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace tfc {

inline constexpr int kNumDtypes = 13;
inline constexpr int kNumOps = 6;  // the numbers of Op, with gaps

// output = inputs[0] (x) ... (x) inputs[num_inputs - 1], left to right. `output` may be any input.
using CombineKernel = void (*)(const std::byte* const* inputs, size_t num_inputs, std::byte* output, size_t count);

// output = (inputs[0] + ... + inputs[num_inputs - 1]) and then times or over `number`: the sum is not stored in
// between.
using FinishedSumKernel = void (*)(const std::byte* const* inputs, size_t num_inputs, std::byte* output, size_t count,
                                   double number);

// Arrays need no alignment except where it is stated; input and output may be the same array.
struct KernelTable {
  const char* name;
  // Null for the 16-bit floats (they are widened first) and where an op has no meaning.
  CombineKernel combine[kNumDtypes][kNumOps];
  // Of float32 and float64, as many inputs as `combine` takes.
  FinishedSumKernel sum_times[2];
  FinishedSumKernel sum_over[2];
  void (*multiply_float32)(const std::byte* input, std::byte* output, size_t count, float factor);
  void (*multiply_float64)(const std::byte* input, std::byte* output, size_t count, double factor);
  void (*divide_float32)(const std::byte* input, std::byte* output, size_t count, float divisor);
  void (*divide_float64)(const std::byte* input, std::byte* output, size_t count, double divisor);
  // 16-bit floats to float32, exactly, and back, to the nearest, ties to even. Input and output are
  // different arrays.
  void (*widen_float16)(const std::byte* input, std::byte* output, size_t count);
  void (*round_float16)(const std::byte* input, std::byte* output, size_t count);
  void (*widen_bfloat16)(const std::byte* input, std::byte* output, size_t count);
  void (*round_bfloat16)(const std::byte* input, std::byte* output, size_t count);
  // Combines two arrays of a 16-bit float in float32 and rounds. Null where an op has no meaning.
  void (*combine_bfloat16[kNumOps])(const std::byte* const* inputs, std::byte* output, size_t count);
  // Copies with stores that bypass the cache. `output` is aligned to 64 bytes. Ends without a fence.
  void (*stream_copy)(const std::byte* input, std::byte* output, size_t bytes);
};

// The largest number of arrays that one CombineKernel call takes.
inline constexpr size_t MaxCombineInputs(Dtype dtype, Op op) {
  return op == Op::kSum && (dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64) ? 4 : 2;
}

const KernelTable* BaselineKernels();
const KernelTable* NeonKernels();    // null where the compiler or the processor has none
const KernelTable* Avx2Kernels();    // likewise
const KernelTable* Avx512Kernels();  // likewise

// All tables that run on this processor, the best one last.
std::vector<const KernelTable*> UsableKernels();

// Makes sure that streaming stores are seen before any later store.
void StreamFence();

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_KERNELS_H_
