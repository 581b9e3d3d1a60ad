// Element-wise reduction of several arrays into one: every type x operation, vectorised.
#ifndef TFCOLLECTIVE_REDUCE_REDUCE_H_
#define TFCOLLECTIVE_REDUCE_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace tfc {

// What one reduction computes: finish(combine over ranks of (x * prescale)), where
// finish(y) = y * postscale / divisor. Integers divide exactly, rounding toward zero.
// 16-bit floats are combined in float32 and rounded once, when stored.
struct Reduction {
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;  // never kAverage: that is kSum with the number of ranks as divisor
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;

  bool scales_input() const { return prescale != 1.0; }
  bool scales_output() const { return postscale != 1.0 || divisor != 1; }
  // The same combination without scaling: for partial results.
  Reduction Unscaled() const { return Reduction{dtype, op, 1.0, 1.0, 1}; }
  Reduction OnlyPrescale() const { return Reduction{dtype, op, prescale, 1.0, 1}; }
  Reduction OnlyFinish() const { return Reduction{dtype, op, 1.0, postscale, divisor}; }
};

// INVALID_ARGUMENT or UNIMPLEMENTED if the combination has no meaning (scaling of bool, say). bool
// knows min and product (and), max and sum (or).
Status CheckReduction(const Reduction& reduction);

// output[i] = finish(inputs[0][i] (x) inputs[1][i] (x) ...), in this order, each input times
// prescale. One input only scales (or copies). `output` may be one of the inputs; arrays need no
// alignment. `stream` asks for stores that bypass the cache (large results not read again soon).
void ReduceArrays(const Reduction& reduction, const std::byte* const* inputs, size_t num_inputs, std::byte* output,
                  size_t count, bool stream = false);

}  // namespace tfc

#endif  // TFCOLLECTIVE_REDUCE_REDUCE_H_
