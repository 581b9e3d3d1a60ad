#include <cstring>
#include <limits>
#include <type_traits>

#include "reduce/block_reducer.h"

namespace tfc {
namespace {

template <typename T>
T Truncate(double value) {
  // 2^63 and 2^64 are doubles, the largest integers below them are not: compare with the bound that
  // is one too many.
  constexpr double kTooMany = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
  if (value >= kTooMany) return std::numeric_limits<T>::max();
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (value != value) return 0;
  return static_cast<T>(value);
}

template <typename T, typename Function>
void Transform(std::byte* array, size_t count, const Function& function) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, array + i * sizeof(T), sizeof(T));
    value = function(value);
    std::memcpy(array + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void Scale(std::byte* array, size_t count, double factor) {
  Transform<T>(array, count, [factor](T value) { return Truncate<T>(static_cast<double>(value) * factor); });
}

template <typename T>
void Divide(std::byte* array, size_t count, int64_t divisor) {
  if constexpr (sizeof(T) < sizeof(int64_t)) {
    // Exact: a quotient that is no integer is further from the next one than double can err.
    const double by = static_cast<double>(divisor);
    Transform<T>(array, count, [by](T value) { return static_cast<T>(static_cast<double>(value) / by); });
  } else {
    const T by = static_cast<T>(divisor);
    Transform<T>(array, count, [by](T value) { return static_cast<T>(value / by); });
  }
}

// Calls function(T()) for the integer type of that name.
template <typename Function>
void WithIntegerType(Dtype dtype, const Function& function) {
  switch (dtype) {
    case Dtype::kInt8:
      return function(int8_t());
    case Dtype::kInt16:
      return function(int16_t());
    case Dtype::kInt32:
      return function(int32_t());
    case Dtype::kInt64:
      return function(int64_t());
    case Dtype::kUint8:
      return function(uint8_t());
    case Dtype::kUint16:
      return function(uint16_t());
    case Dtype::kUint32:
      return function(uint32_t());
    case Dtype::kUint64:
      return function(uint64_t());
    default:
      return;
  }
}

}  // namespace

void ScaleIntegers(Dtype dtype, std::byte* array, size_t count, double factor) {
  WithIntegerType(dtype, [&](auto type) { Scale<decltype(type)>(array, count, factor); });
}

void DivideIntegers(Dtype dtype, std::byte* array, size_t count, int64_t divisor) {
  WithIntegerType(dtype, [&](auto type) { Divide<decltype(type)>(array, count, divisor); });
}

}  // namespace tfc
