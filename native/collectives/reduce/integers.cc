#include "collectives/reduce/integers.h"

#include <cstring>
#include <limits>
#include <type_traits>

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

// Of a 64-bit integer: the upper half with the sign, and the lower half without.
constexpr int kHalfBits = 32;
constexpr int64_t kLowerHalf = 0xffffffff;

__extension__ typedef __int128 Wide;
constexpr Wide kLargestWide = ~(static_cast<Wide>(1) << 127);

Wide ScaleWide(Wide value, double factor) {
  const double scaled = static_cast<double>(value) * factor;
  if (scaled >= static_cast<double>(kLargestWide)) return kLargestWide;
  if (scaled <= -static_cast<double>(kLargestWide)) return -kLargestWide;
  return scaled != scaled ? 0 : static_cast<Wide>(scaled);
}

template <typename T>
T Finish(const Reduction& reduction, Wide sum) {
  if (reduction.postscale != 1.0) sum = ScaleWide(sum, reduction.postscale);
  const Wide value = sum / reduction.divisor;
  if (value > static_cast<Wide>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  if (value < static_cast<Wide>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(value);
}

template <typename T>
void Widen(const Reduction& reduction, const std::byte* input, int64_t* numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, input + i * sizeof(T), sizeof(T));
    if (reduction.scales_input()) value = Truncate<T>(static_cast<double>(value) * reduction.prescale);
    if constexpr (sizeof(T) < sizeof(int64_t)) {
      numbers[i] = static_cast<int64_t>(value);
    } else {
      numbers[2 * i] = static_cast<int64_t>(value >> kHalfBits);
      numbers[2 * i + 1] = static_cast<int64_t>(value) & kLowerHalf;
    }
  }
}

template <typename T>
void FinishAll(const Reduction& reduction, const int64_t* numbers, std::byte* output, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Wide sum = 0;
    if constexpr (sizeof(T) < sizeof(int64_t)) {
      sum = numbers[i];
    } else {
      sum = static_cast<Wide>(numbers[2 * i]) * (static_cast<Wide>(1) << kHalfBits) + numbers[2 * i + 1];
    }
    const T value = Finish<T>(reduction, sum);
    std::memcpy(output + i * sizeof(T), &value, sizeof(T));
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

void WidenIntegers(const Reduction& reduction, const std::byte* input, int64_t* numbers, size_t count) {
  WithIntegerType(reduction.dtype, [&](auto type) { Widen<decltype(type)>(reduction, input, numbers, count); });
}

void FinishIntegers(const Reduction& reduction, const int64_t* numbers, std::byte* output, size_t count) {
  WithIntegerType(reduction.dtype, [&](auto type) { FinishAll<decltype(type)>(reduction, numbers, output, count); });
}

void DivideIntegers(Dtype dtype, std::byte* array, size_t count, int64_t divisor) {
  WithIntegerType(dtype, [&](auto type) { Divide<decltype(type)>(array, count, divisor); });
}

}  // namespace tfc
