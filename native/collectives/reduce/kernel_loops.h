// The loops themselves, compiled once for each instruction set.
//
// Each kernels_*.cc sets its target, defines TFC_KERNELS (the name of its namespace) and
// TFC_VECTOR_BYTES (16, 32 or 64 on x86-64: SSE2, AVX2 with F16C, AVX-512; 16 on aarch64: NEON; else 0)
// and includes this;
// the compiler's own macros do not follow a target pragma. Only plain loops that the compiler
// vectorises, and no function of another header: a shared inline function that was compiled for a
// newer instruction set could be linked into code for an older one.
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_KERNEL_LOOPS_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_KERNEL_LOOPS_H_

#include "collectives/reduce/kernels.h"

#if !defined(TFC_KERNELS) || !defined(TFC_VECTOR_BYTES)
#error "define TFC_KERNELS and TFC_VECTOR_BYTES before including reduce/kernel_loops.h"
#endif

// The arrays of a loop are the same or disjoint, so no iteration depends on another.
#if defined(__clang__)
#define TFC_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TFC_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace tfc {
namespace TFC_KERNELS {

// T in memory that may be unaligned and that others see as bytes.
template <typename T>
struct InMemory {
  typedef T Type __attribute__((aligned(1), may_alias));
};

template <typename T>
const typename InMemory<T>::Type* Read(const std::byte* array) {
  return reinterpret_cast<const typename InMemory<T>::Type*>(array);
}

template <typename T>
typename InMemory<T>::Type* Write(std::byte* array) {
  return reinterpret_cast<typename InMemory<T>::Type*>(array);
}

template <typename T>
constexpr bool kIsFloating = T(1) / T(2) != T(0);

// Unsigned arithmetic wraps; narrow types would be promoted to int, whose overflow is undefined.
template <typename T>
struct Arithmetic {
  using Type = uint32_t;
};
template <>
struct Arithmetic<uint64_t> {
  using Type = uint64_t;
};
template <>
struct Arithmetic<float> {
  using Type = float;
};
template <>
struct Arithmetic<double> {
  using Type = double;
};

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    using A = typename Arithmetic<T>::Type;
    return static_cast<T>(static_cast<A>(a) + static_cast<A>(b));
  }
};

struct Product {
  template <typename T>
  static T Apply(T a, T b) {
    using A = typename Arithmetic<T>::Type;
    return static_cast<T>(static_cast<A>(a) * static_cast<A>(b));
  }
};

// A NaN on either side wins.
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (kIsFloating<T>) return ((a < b) | (a != a)) ? a : b;
    return a < b ? a : b;
  }
};

struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (kIsFloating<T>) return ((a > b) | (a != a)) ? a : b;
    return a > b ? a : b;
  }
};

struct And {
  static uint8_t Apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>((a != 0) & (b != 0)); }
};

struct Or {
  static uint8_t Apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>((a != 0) | (b != 0)); }
};

template <typename T, typename O>
void CombineTwo(const std::byte* const* inputs, size_t, std::byte* output, size_t count) {
  const auto* a = Read<T>(inputs[0]);
  const auto* b = Read<T>(inputs[1]);
  auto* out = Write<T>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = O::Apply(static_cast<T>(a[i]), static_cast<T>(b[i]));
}

template <typename T, typename O>
void CombineUpToFour(const std::byte* const* inputs, size_t num_inputs, std::byte* output, size_t count) {
  if (num_inputs == 2) return CombineTwo<T, O>(inputs, 2, output, count);
  const auto* a = Read<T>(inputs[0]);
  const auto* b = Read<T>(inputs[1]);
  const auto* c = Read<T>(inputs[2]);
  auto* out = Write<T>(output);
  if (num_inputs == 3) {
    TFC_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      out[i] = O::Apply(O::Apply(static_cast<T>(a[i]), static_cast<T>(b[i])), static_cast<T>(c[i]));
    }
    return;
  }
  const auto* d = Read<T>(inputs[3]);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const T left = O::Apply(O::Apply(static_cast<T>(a[i]), static_cast<T>(b[i])), static_cast<T>(c[i]));
    out[i] = O::Apply(left, static_cast<T>(d[i]));
  }
}

template <typename T>
struct Times {
  T number;
  T Of(T value) const { return value * number; }
};

template <typename T>
struct Over {
  T number;
  T Of(T value) const { return value / number; }
};

template <typename T, typename Finish>
void FinishedSum(const std::byte* const* inputs, size_t num_inputs, std::byte* output, size_t count, double number) {
  const Finish finish{static_cast<T>(number)};
  const auto* a = Read<T>(inputs[0]);
  const auto* b = Read<T>(inputs[1]);
  auto* out = Write<T>(output);
  if (num_inputs == 2) {
    TFC_INDEPENDENT
    for (size_t i = 0; i < count; ++i) out[i] = finish.Of(a[i] + b[i]);
    return;
  }
  const auto* c = Read<T>(inputs[2]);
  if (num_inputs == 3) {
    TFC_INDEPENDENT
    for (size_t i = 0; i < count; ++i) out[i] = finish.Of(a[i] + b[i] + c[i]);
    return;
  }
  const auto* d = Read<T>(inputs[3]);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = finish.Of(a[i] + b[i] + c[i] + d[i]);
}

template <typename T>
void Multiply(const std::byte* input, std::byte* output, size_t count, T factor) {
  const auto* in = Read<T>(input);
  auto* out = Write<T>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = in[i] * factor;
}

template <typename T>
void Divide(const std::byte* input, std::byte* output, size_t count, T divisor) {
  const auto* in = Read<T>(input);
  auto* out = Write<T>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = in[i] / divisor;
}

inline float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float WidenBfloat16(uint16_t value) { return FloatOf(static_cast<uint32_t>(value) << 16); }

// Adding just under half of the last kept place, plus its own bit, rounds ties to even.
inline uint16_t RoundBfloat16(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// A subnormal float16 is found by subtracting: 0x38800000 is 2^-14, the smallest normal one.
inline float WidenFloat16Portable(uint16_t value) {
  const uint32_t magnitude = (value & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  const uint32_t normal = magnitude + 0x38000000u;
  const uint32_t infinite = (magnitude + 0x70000000u) | ((magnitude & 0x007fffffu) != 0 ? 0x00400000u : 0u);
  const uint32_t subnormal = BitsOf(FloatOf(magnitude + 0x38800000u) - FloatOf(0x38800000u));
  const uint32_t bits = exponent == 0x0f800000u ? infinite : exponent == 0 ? subnormal : normal;
  return FloatOf(bits | (static_cast<uint32_t>(value & 0x8000u) << 16));
}

// Adding 0.5 moves the last place of a subnormal float16 to the last place of the float32.
inline uint16_t RoundFloat16Portable(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t rounded = magnitude > 0x7f800000u    ? nan
                           : magnitude >= 0x47800000u ? 0x7c00u
                           : magnitude < 0x38800000u  ? subnormal
                                                      : normal;
  return static_cast<uint16_t>(rounded | ((bits >> 16) & 0x8000u));
}

inline void WidenBfloat16Array(const std::byte* input, std::byte* output, size_t count) {
  const auto* in = Read<uint16_t>(input);
  auto* out = Write<float>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = WidenBfloat16(in[i]);
}

inline void RoundBfloat16Array(const std::byte* input, std::byte* output, size_t count) {
  const auto* in = Read<float>(input);
  auto* out = Write<uint16_t>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = RoundBfloat16(in[i]);
}

template <typename O>
void CombineBfloat16(const std::byte* const* inputs, std::byte* output, size_t count) {
  const auto* a = Read<uint16_t>(inputs[0]);
  const auto* b = Read<uint16_t>(inputs[1]);
  auto* out = Write<uint16_t>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = RoundBfloat16(O::Apply(WidenBfloat16(a[i]), WidenBfloat16(b[i])));
}

#if defined(__aarch64__) && TFC_VECTOR_BYTES == 16

inline void WidenFloat16Array(const std::byte* input, std::byte* output, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x8_t in = vreinterpretq_f16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(input + 2 * i)));
    auto* out = reinterpret_cast<uint8_t*>(output + 4 * i);
    vst1q_u8(out, vreinterpretq_u8_f32(vcvt_f32_f16(vget_low_f16(in))));
    vst1q_u8(out + 16, vreinterpretq_u8_f32(vcvt_high_f32_f16(in)));
  }
  for (; i < count; ++i) Write<float>(output)[i] = WidenFloat16Portable(Read<uint16_t>(input)[i]);
}

inline void RoundFloat16Array(const std::byte* input, std::byte* output, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto* in = reinterpret_cast<const uint8_t*>(input + 4 * i);
    const float16x4_t low = vcvt_f16_f32(vreinterpretq_f32_u8(vld1q_u8(in)));
    const float16x8_t both = vcvt_high_f16_f32(low, vreinterpretq_f32_u8(vld1q_u8(in + 16)));
    vst1q_u8(reinterpret_cast<uint8_t*>(output + 2 * i), vreinterpretq_u8_f16(both));
  }
  for (; i < count; ++i) Write<uint16_t>(output)[i] = RoundFloat16Portable(Read<float>(input)[i]);
}

#elif TFC_VECTOR_BYTES >= 32

inline void WidenFloat16Array(const std::byte* input, std::byte* output, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i in = _mm_loadu_si128(reinterpret_cast<const __m128i*>(input + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(output + 4 * i), _mm256_cvtph_ps(in));
  }
  for (; i < count; ++i) Write<float>(output)[i] = WidenFloat16Portable(Read<uint16_t>(input)[i]);
}

inline void RoundFloat16Array(const std::byte* input, std::byte* output, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 in = _mm256_loadu_ps(reinterpret_cast<const float*>(input + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(output + 2 * i), _mm256_cvtps_ph(in, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) Write<uint16_t>(output)[i] = RoundFloat16Portable(Read<float>(input)[i]);
}

#else

inline void WidenFloat16Array(const std::byte* input, std::byte* output, size_t count) {
  const auto* in = Read<uint16_t>(input);
  auto* out = Write<float>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = WidenFloat16Portable(in[i]);
}

inline void RoundFloat16Array(const std::byte* input, std::byte* output, size_t count) {
  const auto* in = Read<float>(input);
  auto* out = Write<uint16_t>(output);
  TFC_INDEPENDENT
  for (size_t i = 0; i < count; ++i) out[i] = RoundFloat16Portable(in[i]);
}

#endif

inline void StreamCopyArray(const std::byte* input, std::byte* output, size_t bytes) {
  size_t i = 0;
#if TFC_VECTOR_BYTES == 64
  for (; i + 64 <= bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(output + i), _mm512_loadu_si512(input + i));
  }
#elif TFC_VECTOR_BYTES == 32
  for (; i + 32 <= bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(output + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(input + i)));
  }
#elif TFC_VECTOR_BYTES == 16 && defined(__aarch64__)
  for (; i + 32 <= bytes; i += 32) {
    const uint8x16_t low = vld1q_u8(reinterpret_cast<const uint8_t*>(input + i));
    const uint8x16_t high = vld1q_u8(reinterpret_cast<const uint8_t*>(input + i + 16));
    asm volatile("stnp %q0, %q1, [%2]" : : "w"(low), "w"(high), "r"(output + i) : "memory");
  }
#elif TFC_VECTOR_BYTES == 16
  for (; i + 16 <= bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(output + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(input + i)));
  }
#endif
  __builtin_memcpy(output + i, input + i, bytes - i);
}

// Rows by dtype, columns by the numbers of Op: -, sum, -, min, max, product. Sums and products of
// signed integers wrap like those of unsigned ones.
#define TFC_INTEGER(T, U) \
  {nullptr, CombineTwo<U, Sum>, nullptr, CombineTwo<T, Min>, CombineTwo<T, Max>, CombineTwo<U, Product>}
#define TFC_FLOATING(T)     \
  {nullptr,                 \
   CombineUpToFour<T, Sum>, \
   nullptr,                 \
   CombineUpToFour<T, Min>, \
   CombineUpToFour<T, Max>, \
   CombineUpToFour<T, Product>}

constexpr KernelTable MakeTable(const char* name) {
  return KernelTable{
      name,
      {
          {},
          {},
          TFC_FLOATING(float),
          TFC_FLOATING(double),
          TFC_INTEGER(int8_t, uint8_t),
          TFC_INTEGER(int16_t, uint16_t),
          TFC_INTEGER(int32_t, uint32_t),
          TFC_INTEGER(int64_t, uint64_t),
          TFC_INTEGER(uint8_t, uint8_t),
          TFC_INTEGER(uint16_t, uint16_t),
          TFC_INTEGER(uint32_t, uint32_t),
          TFC_INTEGER(uint64_t, uint64_t),
          {nullptr, CombineTwo<uint8_t, Or>, nullptr, CombineTwo<uint8_t, And>, CombineTwo<uint8_t, Or>,
           CombineTwo<uint8_t, And>},
      },
      {FinishedSum<float, Times<float>>, FinishedSum<double, Times<double>>},
      {FinishedSum<float, Over<float>>, FinishedSum<double, Over<double>>},
      Multiply<float>,
      Multiply<double>,
      Divide<float>,
      Divide<double>,
      WidenFloat16Array,
      RoundFloat16Array,
      WidenBfloat16Array,
      RoundBfloat16Array,
      {nullptr, CombineBfloat16<Sum>, nullptr, CombineBfloat16<Min>, CombineBfloat16<Max>, CombineBfloat16<Product>},
      StreamCopyArray,
  };
}

#undef TFC_INTEGER
#undef TFC_FLOATING

}  // namespace TFC_KERNELS
}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_KERNEL_LOOPS_H_
