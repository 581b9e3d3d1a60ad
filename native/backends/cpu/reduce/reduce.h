// Element-wise reduction of several arrays into one: every type x operation, vectorised.
#ifndef TFCOLLECTIVE_BACKENDS_CPU_REDUCE_REDUCE_H_
#define TFCOLLECTIVE_BACKENDS_CPU_REDUCE_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace tfc {

// What one reduction computes: finish(combine over ranks of (x * prescale)), where
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

// Averages of integers are exact: their sums are kept in int64 numbers, NumbersOf(dtype) to an element, which wrap for
// no number of ranks below 2^31. A sum of all ranks' numbers by any algorithm is the sum.
inline size_t NumbersOf(Dtype dtype) { return DtypeSize(dtype) == sizeof(int64_t) ? 2 : 1; }
// numbers = input * prescale, `count` elements of an integer type.
void WidenIntegers(const Reduction& reduction, const std::byte* input, int64_t* numbers, size_t count);
// output = finish(numbers), rounded toward zero once for the scale and once for the division, and clamped to the type.
void FinishIntegers(const Reduction& reduction, const int64_t* numbers, std::byte* output, size_t count);

// INVALID_ARGUMENT or UNIMPLEMENTED if the combination has no meaning (scaling of bool, say). bool
// knows min and product (and), max and sum (or).
Status CheckReduction(const Reduction& reduction);

// output[i] = finish(inputs[0][i] (x) inputs[1][i] (x) ...), in this order, each input times
// prescale. One input only scales (or copies). `output` may be one of the inputs; arrays need no
// alignment. `stream` asks for stores that bypass the cache (large results not read again soon).
void ReduceArrays(const Reduction& reduction, const std::byte* const* inputs, size_t num_inputs, std::byte* output,
                  size_t count, bool stream = false);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BACKENDS_CPU_REDUCE_REDUCE_H_
