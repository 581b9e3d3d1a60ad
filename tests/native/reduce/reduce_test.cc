// Every type x operation x length x number of inputs x alignment, with and without streaming stores
// and scaling, in every usable set of loops, against a scalar reference: exactly equal.
#include "collectives/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "collectives/reduce/block_reducer.h"
#include "collectives/reduce/integers.h"
#include "collectives/reduce/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tfc {
namespace {

constexpr size_t kLengths[] = {0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 1000, 4099};
constexpr size_t kLongest = 4099;
constexpr size_t kMostInputs = 5;
constexpr Op kOps[] = {Op::kSum, Op::kMin, Op::kMax, Op::kProduct};

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Scalar conversions by arithmetic, on purpose unlike those of the library.
float Widen(Bfloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }

float Widen(Float16 value) {
  const int exponent = value.bits >> 10 & 31;
  const int mantissa = value.bits & 1023;
  const float sign = (value.bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa != 0 ? std::copysign(NAN, sign) : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

// The nearest of all finite values of the format, ties to the even one.
template <typename Half>
Half Nearest(float value, int mantissa_bits, int least_exponent, uint16_t infinity) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return Half{static_cast<uint16_t>(sign | infinity | 1u << (mantissa_bits - 1))};
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return Half{static_cast<uint16_t>(sign | infinity)};
  const int exponent = std::max(magnitude == 0 ? least_exponent : std::ilogb(magnitude), least_exponent);
  const double places = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  // Counting on from the least normal number carries into the exponent by itself.
  const double bits = places + std::ldexp(exponent - least_exponent, mantissa_bits);
  return Half{static_cast<uint16_t>(sign | std::min<uint32_t>(static_cast<uint32_t>(bits), infinity))};
}

Float16 Round(float value, Float16) { return Nearest<Float16>(value, 10, -14, 0x7c00); }
Bfloat16 Round(float value, Bfloat16) { return Nearest<Bfloat16>(value, 7, -126, 0x7f80); }

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

template <typename T>
T Apply(Op op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return a + b;
    if (op == Op::kSum) return a + b;
    if (op == Op::kProduct) return a * b;
  } else {
    using U = std::make_unsigned_t<T>;
    const uint64_t x = static_cast<U>(a), y = static_cast<U>(b);
    if (op == Op::kSum) return static_cast<T>(static_cast<U>(x + y));
    if (op == Op::kProduct) return static_cast<T>(static_cast<U>(x * y));
  }
  if (op == Op::kMin) return a < b ? a : b;
  return a > b ? a : b;
}

template <typename T>
T ScaleOnce(T value, double factor) {
  if (factor == 1.0) return value;
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    const long double product = static_cast<double>(value) * factor;
    if (product >= static_cast<long double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    if (product <= static_cast<long double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return static_cast<T>(product);
  }
}

template <typename T>
T FinishOnce(T value, const Reduction& reduction) {
  value = ScaleOnce(value, reduction.postscale);
  return reduction.divisor == 1 ? value : static_cast<T>(value / static_cast<T>(reduction.divisor));
}

// The reference for one element.
template <typename T>
T Expected(const Reduction& reduction, const std::vector<T>& values) {
  if constexpr (std::is_same_v<T, Bool>) {
    if (values.size() == 1) return values[0];
    bool any = false, all = true;
    for (Bool value : values) any = any || value.value != 0, all = all && value.value != 0;
    return Bool{static_cast<uint8_t>(reduction.op == Op::kMin || reduction.op == Op::kProduct ? all : any)};
  } else if constexpr (kIsHalf<T>) {
    if (values.size() == 1 && !reduction.scales_input() && !reduction.scales_output()) return values[0];
    std::vector<float> wide;
    for (T value : values) wide.push_back(Widen(value));
    return Round(Expected<float>(reduction, wide), T());
  } else {
    T result = ScaleOnce(values[0], reduction.prescale);
    for (size_t i = 1; i < values.size(); ++i) {
      result = Apply(reduction.op, result, ScaleOnce(values[i], reduction.prescale));
    }
    return FinishOnce(result, reduction);
  }
}

bool IsNan(float value) { return std::isnan(value); }
bool IsNan(double value) { return std::isnan(value); }
bool IsNan(Float16 value) { return std::isnan(Widen(value)); }
bool IsNan(Bfloat16 value) { return std::isnan(Widen(value)); }
template <typename T>
bool IsNan(T) {
  return false;
}

// Bitwise, except that all NaNs are one: which payload wins is not promised.
template <typename T>
bool Same(T left, T right) {
  return std::memcmp(&left, &right, sizeof(T)) == 0 || (IsNan(left) && IsNan(right));
}

template <typename T>
T RandomValue(std::mt19937_64* random) {
  const uint64_t bits = (*random)();
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  if constexpr (std::is_same_v<T, Bool>) {
    value.value = static_cast<uint8_t>(bits % 3 == 0 ? 0 : bits % 5);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (bits % 4 != 0) value = static_cast<T>(static_cast<int64_t>(bits)) / static_cast<T>(1e17);
  } else if constexpr (kIsHalf<T>) {
    if (bits % 4 != 0) value = Round(static_cast<float>(static_cast<int64_t>(bits)) / 1e18f, T());
  }
  return value;
}

template <typename T>
constexpr Dtype kDtypeOf = Dtype::kFloat32;
template <>
constexpr Dtype kDtypeOf<Float16> = Dtype::kFloat16;
template <>
constexpr Dtype kDtypeOf<Bfloat16> = Dtype::kBfloat16;
template <>
constexpr Dtype kDtypeOf<double> = Dtype::kFloat64;
template <>
constexpr Dtype kDtypeOf<int8_t> = Dtype::kInt8;
template <>
constexpr Dtype kDtypeOf<int16_t> = Dtype::kInt16;
template <>
constexpr Dtype kDtypeOf<int32_t> = Dtype::kInt32;
template <>
constexpr Dtype kDtypeOf<int64_t> = Dtype::kInt64;
template <>
constexpr Dtype kDtypeOf<uint8_t> = Dtype::kUint8;
template <>
constexpr Dtype kDtypeOf<uint16_t> = Dtype::kUint16;
template <>
constexpr Dtype kDtypeOf<uint32_t> = Dtype::kUint32;
template <>
constexpr Dtype kDtypeOf<uint64_t> = Dtype::kUint64;
template <>
constexpr Dtype kDtypeOf<Bool> = Dtype::kBool;

template <typename T>
class ReduceTest : public testing::Test {
 protected:
  ReduceTest() {
    std::mt19937_64 random(17);
    for (std::vector<T>& input : inputs_) {
      for (size_t i = 0; i < kLongest; ++i) input.push_back(RandomValue<T>(&random));
    }
  }

  std::vector<T> Reference(const Reduction& reduction, size_t num_inputs) const {
    std::vector<T> expected;
    for (size_t i = 0; i < kLongest; ++i) {
      std::vector<T> values;
      for (size_t k = 0; k < num_inputs; ++k) values.push_back(inputs_[k][i]);
      expected.push_back(Expected(reduction, values));
    }
    return expected;
  }

  // Input k begins `k * shift` bytes past a cache line, the output `shift` bytes past one.
  void CheckOne(const KernelTable& kernels, const Reduction& reduction, const std::vector<T>& expected,
                size_t num_inputs, size_t length, size_t shift, bool stream) {
    const std::byte* inputs[kMostInputs];
    for (size_t k = 0; k < num_inputs; ++k) {
      std::byte* memory = Room(k) + k * shift;
      if (length > 0) std::memcpy(memory, inputs_[k].data(), length * sizeof(T));
      inputs[k] = memory;
    }
    std::byte* output = Room(kMostInputs) + shift;
    std::memset(Room(kMostInputs), 0x5a, shift + (length + 1) * sizeof(T));
    ReduceArraysWith(kernels, reduction, inputs, num_inputs, output, length, stream);
    Compare(kernels, expected, output, length);
    EXPECT_EQ(std::to_integer<int>(output[length * sizeof(T)]), 0x5a) << "written past the end";
    if (shift == 0) return;
    EXPECT_EQ(std::to_integer<int>(output[-1]), 0x5a) << "written before the beginning";
  }

  void Compare(const KernelTable& kernels, const std::vector<T>& expected, const std::byte* output, size_t length) {
    for (size_t i = 0; i < length; ++i) {
      T value;
      std::memcpy(&value, output + i * sizeof(T), sizeof(T));
      ASSERT_TRUE(Same(value, expected[i])) << kernels.name << " differs at element " << i << " of " << length;
    }
  }

  std::byte* Room(size_t index) {
    std::vector<std::byte>& room = rooms_[index];
    room.resize(kLongest * sizeof(T) + 1024);
    return room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64);
  }

  std::vector<T> inputs_[kMostInputs];
  std::vector<std::byte> rooms_[kMostInputs + 1];
};

using AllTypes = testing::Types<Float16, Bfloat16, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
                                uint32_t, uint64_t, Bool>;
TYPED_TEST_SUITE(ReduceTest, AllTypes);

std::vector<Reduction> Reductions(Dtype dtype) {
  std::vector<Reduction> reductions;
  for (Op op : kOps) {
    reductions.push_back(Reduction{dtype, op, 1.0, 1.0, 1});
    if (dtype == Dtype::kBool) continue;
    reductions.push_back(Reduction{dtype, op, 1.0, 1.0, 2});
    reductions.push_back(Reduction{dtype, op, 1.0, 1.0, 3});
    reductions.push_back(Reduction{dtype, op, 1.0, 0.9, 1});
    reductions.push_back(Reduction{dtype, op, 1.0, 0.9, 4});
    reductions.push_back(Reduction{dtype, op, 0.7, 1.0, 1});
    reductions.push_back(Reduction{dtype, op, 1.3, 0.9, 5});
  }
  return reductions;
}

TYPED_TEST(ReduceTest, EqualsTheScalarReference) {
  for (const Reduction& reduction : Reductions(kDtypeOf<TypeParam>)) {
    for (size_t num_inputs = 1; num_inputs <= kMostInputs; ++num_inputs) {
      const std::vector<TypeParam> expected = this->Reference(reduction, num_inputs);
      for (const KernelTable* kernels : UsableKernels()) {
        for (size_t length : kLengths) {
          for (size_t shift : {size_t{0}, sizeof(TypeParam), size_t{13}}) {
            for (bool stream : {false, true}) {
              this->CheckOne(*kernels, reduction, expected, num_inputs, length, shift, stream);
              if (this->HasFatalFailure()) {
                FAIL() << OpName(reduction.op) << " of " << num_inputs << " x " << DtypeName(reduction.dtype)
                       << " prescale " << reduction.prescale << " postscale " << reduction.postscale << " divisor "
                       << reduction.divisor << " shift " << shift << " stream " << stream;
              }
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(ReduceTest, OutputMayBeAnyInput) {
  for (int64_t divisor : {1, 2, 3}) {
    if (divisor != 1 && kDtypeOf<TypeParam> == Dtype::kBool) continue;
    const Reduction reduction{kDtypeOf<TypeParam>, Op::kSum, 1.0, 1.0, divisor};
    for (size_t num_inputs = 1; num_inputs <= kMostInputs; ++num_inputs) {
      const std::vector<TypeParam> expected = this->Reference(reduction, num_inputs);
      for (size_t target = 0; target < num_inputs; ++target) {
        for (bool stream : {false, true}) {
          std::vector<std::vector<TypeParam>> copies(this->inputs_, this->inputs_ + num_inputs);
          std::vector<const std::byte*> inputs;
          for (const auto& copy : copies) inputs.push_back(reinterpret_cast<const std::byte*>(copy.data()));
          std::byte* output = reinterpret_cast<std::byte*>(copies[target].data());
          ReduceArrays(reduction, inputs.data(), num_inputs, output, kLongest, stream);
          this->Compare(*UsableKernels().back(), expected, output, kLongest);
        }
      }
    }
  }
}

TEST(Float16Test, EveryValueSurvivesWideningAndRounding) {
  std::vector<Float16> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back(Float16{static_cast<uint16_t>(bits)});
  for (const KernelTable* kernels : UsableKernels()) {
    std::vector<float> wide(all.size());
    kernels->widen_float16(reinterpret_cast<const std::byte*>(all.data()), reinterpret_cast<std::byte*>(wide.data()),
                           all.size());
    std::vector<Float16> back(all.size());
    kernels->round_float16(reinterpret_cast<const std::byte*>(wide.data()), reinterpret_cast<std::byte*>(back.data()),
                           all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(Same(wide[i], Widen(all[i]))) << kernels->name << " widens " << i;
      ASSERT_TRUE(Same(back[i], all[i])) << kernels->name << " rounds " << i;
    }
  }
}

// Values at, just below and just above every tie, and all exponents.
std::vector<float> ValuesNearTies() {
  std::vector<float> values;
  std::mt19937 random(3);
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t high = static_cast<uint32_t>(random()) & 0x007f0000u;
      for (uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        for (uint32_t sign : {0u, 0x80000000u}) values.push_back(FloatOf(sign | exponent << 23 | high | low));
      }
    }
  }
  return values;
}

TEST(RoundingTest, AllLoopsRoundToNearestEven) {
  const std::vector<float> values = ValuesNearTies();
  for (const KernelTable* kernels : UsableKernels()) {
    std::vector<Float16> half(values.size());
    std::vector<Bfloat16> brain(values.size());
    const auto* in = reinterpret_cast<const std::byte*>(values.data());
    kernels->round_float16(in, reinterpret_cast<std::byte*>(half.data()), values.size());
    kernels->round_bfloat16(in, reinterpret_cast<std::byte*>(brain.data()), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(Same(half[i], Round(values[i], Float16()))) << kernels->name << " " << values[i];
      ASSERT_TRUE(Same(brain[i], Round(values[i], Bfloat16()))) << kernels->name << " " << values[i];
    }
  }
}

// Not only equal to a reference: the loops agree in every bit, scaled or not.
TEST(KernelsTest, AllLoopsGiveTheSameBits) {
  std::mt19937_64 random(29);
  for (int number = 0; number < kNumDtypes; ++number) {
    const Dtype dtype = static_cast<Dtype>(number);
    std::vector<uint64_t> memory[3];
    const std::byte* inputs[3];
    for (int k = 0; k < 3; ++k) {
      for (size_t i = 0; i < 4096; ++i) memory[k].push_back(random() & 0xbfbfbfbfbfbfbfbf);  // no NaN, no infinity
      inputs[k] = reinterpret_cast<const std::byte*>(memory[k].data());
    }
    const size_t count = 4096 * sizeof(uint64_t) / DtypeSize(dtype);
    for (const Reduction& reduction : Reductions(dtype)) {
      std::vector<std::vector<uint64_t>> results;
      for (const KernelTable* kernels : UsableKernels()) {
        results.emplace_back(4096);
        ReduceArraysWith(*kernels, reduction, inputs, 3, reinterpret_cast<std::byte*>(results.back().data()), count,
                         false);
        EXPECT_EQ(results.back(), results.front()) << kernels->name << " " << DtypeName(dtype);
      }
    }
  }
}

// By way of wide partial results, in two steps: the same bits as in one.
TEST(KernelsTest, WidePartialResultsLoseNothing) {
  std::mt19937_64 random(31);
  constexpr size_t kCount = 5003;
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    std::vector<uint16_t> memory[3];
    std::vector<float> wide[3];
    for (int k = 0; k < 3; ++k) {
      for (size_t i = 0; i < kCount; ++i) memory[k].push_back(random() & 0xbfbf);  // no NaN, no infinity
      wide[k].resize(kCount);
    }
    for (const Reduction& reduction : Reductions(dtype)) {
      for (const KernelTable* kernels : UsableKernels()) {
        const std::byte *narrow[3], *partial[3];
        for (int k = 0; k < 3; ++k) {
          narrow[k] = reinterpret_cast<const std::byte*>(memory[k].data());
          partial[k] = reinterpret_cast<const std::byte*>(wide[k].data());
          ReduceArraysWith(*kernels, reduction.ToWide(), &narrow[k], 1, reinterpret_cast<std::byte*>(wide[k].data()),
                           kCount, false);
        }
        std::vector<uint16_t> expected(kCount), result(kCount);
        ReduceArraysWith(*kernels, reduction, narrow, 3, reinterpret_cast<std::byte*>(expected.data()), kCount, false);
        Reduction rest = reduction.OnlyFinish();
        rest.wide_input = true;
        ReduceArraysWith(*kernels, rest, partial, 3, reinterpret_cast<std::byte*>(result.data()), kCount, false);
        EXPECT_EQ(result, expected) << kernels->name << " " << DtypeName(dtype);
      }
    }
  }
}

TEST(IntegerAverageTest, IsThatOfTheExactSum) {
  const std::vector<int64_t> values = {7, -7, 9007199254740993, INT64_MAX, INT64_MIN};
  const auto* input = reinterpret_cast<const std::byte*>(values.data());
  std::vector<int64_t> numbers(values.size() * NumbersOf(Dtype::kInt64)), output(values.size());
  const Reduction reduction{Dtype::kInt64, Op::kSum, 1.0, 1.0, 1000};
  WidenIntegers(reduction, input, numbers.data(), values.size());
  for (int64_t& number : numbers) number *= 1000;  // what a thousand ranks add up
  FinishIntegers(reduction, numbers.data(), reinterpret_cast<std::byte*>(output.data()), values.size());
  EXPECT_EQ(output, values);
  Reduction doubled = reduction;
  doubled.postscale = 2.0;
  FinishIntegers(doubled, numbers.data(), reinterpret_cast<std::byte*>(output.data()), values.size());
  EXPECT_EQ(output[1], -14);
  EXPECT_EQ(output[3], INT64_MAX) << "clamped";
  EXPECT_EQ(output[4], INT64_MIN) << "clamped";
}

TEST(MinMaxTest, NanOnEitherSideWins) {
  for (Op op : {Op::kMin, Op::kMax}) {
    for (bool nan_first : {false, true}) {
      const std::vector<float> numbers(33, 1.0f), nans(33, NAN);
      const std::byte* inputs[] = {reinterpret_cast<const std::byte*>((nan_first ? nans : numbers).data()),
                                   reinterpret_cast<const std::byte*>((nan_first ? numbers : nans).data())};
      std::vector<float> output(33);
      ReduceArrays(Reduction{Dtype::kFloat32, op, 1.0, 1.0, 1}, inputs, 2, reinterpret_cast<std::byte*>(output.data()),
                   33);
      for (float value : output) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(DivisorTest, DividesIntegersExactlyTowardZero) {
  const std::vector<int64_t> values = {7, -7, 9007199254740993, -9007199254740993, INT64_MAX, INT64_MIN};
  const std::byte* input = reinterpret_cast<const std::byte*>(values.data());
  std::vector<int64_t> output(values.size());
  ReduceArrays(Reduction{Dtype::kInt64, Op::kSum, 1.0, 1.0, 3}, &input, 1, reinterpret_cast<std::byte*>(output.data()),
               values.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(output[i], values[i] / 3);
}

#if defined(__SSE2__)
constexpr uint64_t kFlush = 0x8040;  // flush to zero, denormals are zero
uint64_t GetFloatMode() { return _mm_getcsr(); }
void SetFloatMode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
constexpr uint64_t kFlush = 1u << 24;
uint64_t GetFloatMode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void SetFloatMode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#endif

#if defined(__SSE2__) || defined(__aarch64__)
TEST(FloatModeTest, SubnormalsCountWhateverTheThreadDoes) {
  const uint64_t saved = GetFloatMode();
  SetFloatMode(saved | kFlush);
  const std::vector<float> values(33, 0x1p-140f);
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(values.data()),
                               reinterpret_cast<const std::byte*>(values.data())};
  std::vector<float> output(33);
  ReduceArrays(Reduction(), inputs, 2, reinterpret_cast<std::byte*>(output.data()), 33);
  const uint64_t after = GetFloatMode();
  SetFloatMode(saved);
  EXPECT_EQ(after & kFlush, kFlush);
  for (float value : output) EXPECT_EQ(value, 0x1p-139f);
}
#endif

TEST(CheckReductionTest, RefusesWhatHasNoMeaning) {
  EXPECT_TRUE(CheckReduction(Reduction()).ok());
  EXPECT_TRUE(CheckReduction(Reduction{Dtype::kBool, Op::kMin, 1.0, 1.0, 1}).ok());
  EXPECT_EQ(CheckReduction(Reduction{Dtype::kBool, Op::kSum, 1.0, 1.0, 2}).code(), Code::kUnimplemented);
  EXPECT_EQ(CheckReduction(Reduction{Dtype::kBool, Op::kSum, 0.5, 1.0, 1}).code(), Code::kUnimplemented);
  EXPECT_EQ(CheckReduction(Reduction{Dtype::kFloat32, Op::kAverage, 1.0, 1.0, 1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckReduction(Reduction{Dtype::kFloat32, Op::kSum, 1.0, 1.0, 0}).code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckReduction(Reduction{Dtype::kFloat32, Op::kSum, NAN, 1.0, 1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckReduction(Reduction{static_cast<Dtype>(99), Op::kSum, 1.0, 1.0, 1}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tfc
