// Test data whose reductions are exact in every type, and span lists of odd lengths over it.
#ifndef TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_VALUES_H_
#define TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_VALUES_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "base/span.h"

namespace tfc {

using Bytes = std::vector<std::byte>;

inline const std::vector<Dtype>& AllDtypes() {
  static const std::vector<Dtype> all = {
      Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt8,   Dtype::kInt16, Dtype::kInt32,
      Dtype::kInt64,   Dtype::kUint8,    Dtype::kUint16,  Dtype::kUint32,  Dtype::kUint64, Dtype::kBool};
  return all;
}

inline bool IsSigned(Dtype dtype) { return static_cast<int>(dtype) <= static_cast<int>(Dtype::kInt64); }

// IEEE half precision of a small integer (|value| <= 2048: exact).
inline uint16_t HalfOfInteger(int value) {
  if (value == 0) return 0;
  const int sign = value < 0 ? 0x8000 : 0;
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);  // in [0.5, 1)
  const int mantissa = static_cast<int>((fraction * 2 - 1) * 1024);
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10) | mantissa);
}

template <typename T>
void StoreAs(int value, std::byte* to) {
  const T typed = static_cast<T>(value);
  std::memcpy(to, &typed, sizeof(typed));
}

inline void Store(Dtype dtype, int value, std::byte* to) {
  switch (dtype) {
    case Dtype::kFloat16: {
      const uint16_t half = HalfOfInteger(value);
      std::memcpy(to, &half, sizeof(half));
      return;
    }
    case Dtype::kBfloat16: {
      const float single = static_cast<float>(value);
      std::memcpy(to, reinterpret_cast<const char*>(&single) + 2, 2);  // the upper half; little endian
      return;
    }
    case Dtype::kFloat32:
      return StoreAs<float>(value, to);
    case Dtype::kFloat64:
      return StoreAs<double>(value, to);
    case Dtype::kInt8:
      return StoreAs<int8_t>(value, to);
    case Dtype::kInt16:
      return StoreAs<int16_t>(value, to);
    case Dtype::kInt32:
      return StoreAs<int32_t>(value, to);
    case Dtype::kInt64:
      return StoreAs<int64_t>(value, to);
    case Dtype::kUint8:
      return StoreAs<uint8_t>(value, to);
    case Dtype::kUint16:
      return StoreAs<uint16_t>(value, to);
    case Dtype::kUint32:
      return StoreAs<uint32_t>(value, to);
    case Dtype::kUint64:
      return StoreAs<uint64_t>(value, to);
    case Dtype::kBool:
      return StoreAs<bool>(value != 0, to);
  }
}

// What `rank` contributes at element i, small enough for int8 after any operation of up to 8 ranks.
inline int InputValue(Dtype dtype, Op op, int size, int rank, size_t i) {
  const int mixed = static_cast<int>((static_cast<size_t>(rank) * 5 + i * 3) % 7);
  if (dtype == Dtype::kBool) return mixed % 3 != 0;
  if (op == Op::kProduct) return mixed == 0 ? 2 : 1;
  if (op == Op::kAverage) return (IsSigned(dtype) && i % 2 == 1 ? -1 : 1) * (mixed % 2) * size;
  return IsSigned(dtype) ? mixed - 3 : mixed;
}

// The reduction of all ranks' values, computed in plain integers.
inline int ExpectedValue(Dtype dtype, Op op, int size, size_t i) {
  int result = InputValue(dtype, op, size, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const int value = InputValue(dtype, op, size, rank, i);
    if (op == Op::kMin) result = std::min(result, value);
    if (op == Op::kMax) result = std::max(result, value);
    if (op == Op::kProduct) result *= value;
    if (op == Op::kSum || op == Op::kAverage) result += value;
  }
  if (dtype == Dtype::kBool) return result != 0;
  return op == Op::kAverage ? result / size : result;
}

inline Bytes InputBytes(Dtype dtype, Op op, int size, int rank, size_t count) {
  Bytes bytes(count * DtypeSize(dtype));
  for (size_t i = 0; i < count; ++i)
    Store(dtype, InputValue(dtype, op, size, rank, i), bytes.data() + i * DtypeSize(dtype));
  return bytes;
}

inline Bytes ExpectedBytes(Dtype dtype, Op op, int size, size_t count) {
  Bytes bytes(count * DtypeSize(dtype));
  for (size_t i = 0; i < count; ++i)
    Store(dtype, ExpectedValue(dtype, op, size, i), bytes.data() + i * DtypeSize(dtype));
  return bytes;
}

// Cuts memory into spans of odd numbers of elements (and some empty ones); `seed` 0 makes one span.
inline MutableSpans CutUp(std::byte* data, size_t bytes, size_t element, size_t seed) {
  if (seed == 0) return {MutableSpan{data, bytes}};
  static const size_t kLengths[] = {1, 0, 3, 17, 2, 5, 129, 0, 4097, 31};
  MutableSpans spans;
  for (size_t at = 0, next = seed; at < bytes; ++next) {
    const size_t size = std::min(kLengths[next % 10] * element, bytes - at);
    spans.push_back(MutableSpan{data + at, size});
    at += size;
  }
  return spans;
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_VALUES_H_
