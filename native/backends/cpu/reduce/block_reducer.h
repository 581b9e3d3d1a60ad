// Reduction block by block through a buffer that stays in the first-level cache. Internal to reduce/.
#ifndef TFCOLLECTIVE_BACKENDS_CPU_REDUCE_BLOCK_REDUCER_H_
#define TFCOLLECTIVE_BACKENDS_CPU_REDUCE_BLOCK_REDUCER_H_

#include <cstddef>

#include "backends/cpu/reduce/kernels.h"
#include "backends/cpu/reduce/reduce.h"

namespace tfc {

// ReduceArrays with the loops of `kernels`. `stream` as there.
void ReduceArraysWith(const KernelTable& kernels, const Reduction& reduction, const std::byte* const* inputs,
                      size_t num_inputs, std::byte* output, size_t count, bool stream);

// Integers are scaled through double: the product is rounded toward zero and clamped to the type.
// array[i] = array[i] * factor; does nothing for other types.
void ScaleIntegers(Dtype dtype, std::byte* array, size_t count, double factor);
// array[i] = array[i] / divisor, exact, toward zero. `divisor` is positive.
void DivideIntegers(Dtype dtype, std::byte* array, size_t count, int64_t divisor);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BACKENDS_CPU_REDUCE_BLOCK_REDUCER_H_
