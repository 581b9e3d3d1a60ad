#include "collectives/reduce/reduce.h"

#include <cstdint>

#include "collectives/reduce/block_reducer.h"
#include "collectives/reduce/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tfc {
namespace {

const KernelTable& BestKernels() {
  static const KernelTable* const best = UsableKernels().back();
  return *best;
}

// TensorFlow lets its threads flush subnormals to zero, others do not: without one setting for all,
// ranks that run on different kinds of threads would get different results.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(Get()), differs_((saved_ & ~kStickyFlags) != kDefault) {
    if (differs_) Set(kDefault);
  }
  ~DefaultFloatMode() {
    if (differs_) Set(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  // The default: nearest, subnormals kept, no exception traps.
#if defined(__SSE2__)
  using Word = unsigned;
  static constexpr Word kStickyFlags = 0x3f;
  static constexpr Word kDefault = 0x1f80;
  static Word Get() { return _mm_getcsr(); }
  static void Set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kStickyFlags = 0;  // they are in fpsr
  static constexpr Word kDefault = 0;
  static Word Get() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  // A compiler barrier, so that no load of an input moves before it and no store of a result behind it.
  static void Set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = unsigned;
  static constexpr Word kStickyFlags = 0;
  static constexpr Word kDefault = 0;
  static Word Get() { return kDefault; }
  static void Set(Word) {}
#endif

  const Word saved_;
  const bool differs_;
};

}  // namespace

void ReduceArrays(const Reduction& reduction, const std::byte* const* inputs, size_t num_inputs, std::byte* output,
                  size_t count, bool stream) {
  const DefaultFloatMode float_mode;
  ReduceArraysWith(BestKernels(), reduction, inputs, num_inputs, output, count, stream);
}

}  // namespace tfc
