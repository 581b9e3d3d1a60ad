// Arithmetic of integer types that the vectorised loops do not have: scaling, exact division and exact averages.
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_INTEGERS_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_INTEGERS_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

// Integers are scaled through double: the product is rounded toward zero and clamped to the type.
// array[i] = array[i] * factor; does nothing for other types.
void ScaleIntegers(Dtype dtype, std::byte* array, size_t count, double factor);
// array[i] = array[i] / divisor, exact, toward zero. `divisor` is positive.
void DivideIntegers(Dtype dtype, std::byte* array, size_t count, int64_t divisor);

// Averages of integers are exact: their sums are kept in int64 numbers, NumbersOf(dtype) to an element, which wrap for
// no number of ranks below 2^31. A sum of all ranks' numbers by any algorithm is the sum.
inline size_t NumbersOf(Dtype dtype) { return DtypeSize(dtype) == sizeof(int64_t) ? 2 : 1; }
// numbers = input * prescale, `count` elements of an integer type.
void WidenIntegers(const Reduction& reduction, const std::byte* input, int64_t* numbers, size_t count);
// output = finish(numbers), rounded toward zero once for the scale and once for the division, and clamped to the type.
void FinishIntegers(const Reduction& reduction, const int64_t* numbers, std::byte* output, size_t count);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_INTEGERS_H_
