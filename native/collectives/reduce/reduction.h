// The description of a reduction: type, operation and scaling.
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_REDUCTION_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_REDUCTION_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace tfc {

// The computation of one reduction: finish(combine over ranks of (x * prescale)), where
// finish(y) = y * postscale / divisor. Integers divide exactly, rounding toward zero; their sums wrap.
// 16-bit floats are combined in float32 and rounded once, when stored; partial results of theirs stay
// float32, in arrays that are `wide`.
struct Reduction {
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;  // never kAverage: that is kSum with the number of ranks as divisor
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;
  // 16-bit floats only: the inputs are, or the output is, the float32 that they are computed in.
  bool wide_input = false;
  bool wide_output = false;

  // Bytes of an element of the inputs and of the output.
  size_t input_size() const { return DtypeSize(wide_input ? Dtype::kFloat32 : dtype); }
  size_t output_size() const { return DtypeSize(wide_output ? Dtype::kFloat32 : dtype); }

  bool scales_input() const { return prescale != 1.0; }
  bool scales_output() const { return postscale != 1.0 || divisor != 1; }
  // The same combination without scaling: for partial results.
  Reduction Unscaled() const { return Reduction{dtype, op, 1.0, 1.0, 1}; }
  Reduction OnlyPrescale() const { return Reduction{dtype, op, prescale, 1.0, 1}; }
  Reduction OnlyFinish() const { return Reduction{dtype, op, 1.0, postscale, divisor}; }
  // Of 16-bit floats: the inputs times prescale as float32, the same reduction of such float32, and what it gives as
  // 16 bits. One after the other they are the reduction, rounded once.
  Reduction ToWide() const { return Reduction{dtype, op, prescale, 1.0, 1, wide_input, true}; }
  Reduction OfWide() const { return Reduction{Dtype::kFloat32, op, 1.0, postscale, divisor}; }
  Reduction FromWide() const { return Reduction{dtype, op, 1.0, 1.0, 1, true, wide_output}; }
};

// INVALID_ARGUMENT or UNIMPLEMENTED if the combination has no meaning (scaling of bool, say). bool
// knows min and product (and), max and sum (or).
Status CheckReduction(const Reduction& reduction);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_REDUCTION_H_
