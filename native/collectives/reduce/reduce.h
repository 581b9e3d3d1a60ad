// Element-wise reduction of several arrays into one: every type x operation, vectorised.
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_REDUCE_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_REDUCE_H_

#include <cstddef>

#include "collectives/reduce/reduction.h"

namespace tfc {

// output[i] = finish(inputs[0][i] (x) inputs[1][i] (x) ...), in this order, each input times
// prescale. One input only scales (or copies). `output` may be one of the inputs; arrays need no
// alignment. `stream` asks for stores that bypass the cache (large results not read again soon).
void ReduceArrays(const Reduction& reduction, const std::byte* const* inputs, size_t num_inputs, std::byte* output,
                  size_t count, bool stream = false);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_REDUCE_H_
