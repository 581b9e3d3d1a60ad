#include "collectives/reduce/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <initializer_list>
#endif

namespace tfc {

#if defined(__x86_64__)

namespace {

constexpr unsigned Bits(std::initializer_list<int> numbers) {
  unsigned bits = 0;
  for (const int number : numbers) bits |= 1u << number;
  return bits;
}

constexpr bool HasAll(unsigned value, unsigned bits) { return (value & bits) == bits; }

// Which registers the system saves when it switches threads. Only where cpuid has announced xgetbv.
unsigned SavedRegisters() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

// __builtin_cpu_supports does the same, but not every compiler's run-time library has what it needs.
CpuFeatures ReadCpuFeatures() {
  constexpr unsigned kOsxsaveAvxF16c = Bits({27, 28, 29});  // leaf 1, ecx
  constexpr unsigned kAvx2 = Bits({5});                     // leaf 7, ebx
  constexpr unsigned kAvx512 = Bits({16, 17, 30, 31});      // leaf 7, ebx: F, DQ, BW, VL
  constexpr unsigned kYmm = Bits({1, 2});
  constexpr unsigned kZmm = Bits({1, 2, 5, 6, 7});
  CpuFeatures features;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !HasAll(ecx, kOsxsaveAvxF16c)) return features;
  const unsigned saved = SavedRegisters();
  if (!HasAll(saved, kYmm) || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return features;
  features.avx2_f16c = HasAll(ebx, kAvx2);
  features.avx512 = features.avx2_f16c && HasAll(ebx, kAvx512) && HasAll(saved, kZmm);
  return features;
}

#else

CpuFeatures ReadCpuFeatures() { return {}; }

#endif

}  // namespace tfc
