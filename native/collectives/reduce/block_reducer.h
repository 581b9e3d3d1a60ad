// Reduction block by block through a buffer that stays in the first-level cache. Internal to reduce/.
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_BLOCK_REDUCER_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_BLOCK_REDUCER_H_

#include <cstddef>

#include "collectives/reduce/kernels.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

// ReduceArrays with the loops of `kernels`. `stream` as there.
void ReduceArraysWith(const KernelTable& kernels, const Reduction& reduction, const std::byte* const* inputs,
                      size_t num_inputs, std::byte* output, size_t count, bool stream);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_BLOCK_REDUCER_H_
