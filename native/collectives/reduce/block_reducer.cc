#include "collectives/reduce/block_reducer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "collectives/reduce/integers.h"

namespace tfc {
namespace {

constexpr size_t kBlockBytes = 4096;  // of the computing type; five of them fit the first-level cache
constexpr size_t kMaxPrepared = 4;
constexpr size_t kCacheLine = 64;

// 16-bit floats are computed in float32, all others in themselves.
Dtype ComputingType(Dtype dtype) { return IsHalf(dtype) ? Dtype::kFloat32 : dtype; }

bool IsPowerOfTwo(int64_t number) { return (number & (number - 1)) == 0; }

// How a sum is finished in the loop that makes it. Without a kernel there is nothing to finish, or no such loop.
struct Finisher {
  FinishedSumKernel kernel = nullptr;
  double number = 1.0;
};

// One step only, and the same one that Multiply or Divide would take.
Finisher FinisherOf(const KernelTable& kernels, const Reduction& reduction, Dtype computing) {
  const bool both = reduction.postscale != 1.0 && reduction.divisor != 1;
  const bool vectorised = computing == Dtype::kFloat32 || computing == Dtype::kFloat64;
  if (reduction.op != Op::kSum || !vectorised || !reduction.scales_output() || both) return {};
  const size_t type = computing == Dtype::kFloat32 ? 0 : 1;
  if (reduction.divisor == 1) return {kernels.sum_times[type], reduction.postscale};
  const auto divisor = static_cast<double>(reduction.divisor);
  // Multiplying by a power of two is exact, and faster.
  if (IsPowerOfTwo(reduction.divisor)) return {kernels.sum_times[type], 1.0 / divisor};
  return {kernels.sum_over[type], divisor};
}

// One call of ReduceArrays. Works through the arrays in blocks; each block is prepared (widened,
// prescaled) where needed, combined, finished and stored.
class BlockReducer {
 public:
  BlockReducer(const KernelTable& kernels, const Reduction& reduction, bool stream)
      : kernels_(kernels),
        reduction_(reduction),
        computing_(ComputingType(reduction.dtype)),
        widens_(IsHalf(reduction.dtype) && !reduction.wide_input),
        rounds_(IsHalf(reduction.dtype) && !reduction.wide_output),
        stream_(stream),
        input_size_(reduction.input_size()),
        output_size_(reduction.output_size()),
        computing_size_(DtypeSize(computing_)),
        combine_(kernels.combine[static_cast<int>(computing_)][static_cast<int>(reduction.op)]),
        finisher_(FinisherOf(kernels, reduction, computing_)) {}

  void Run(const std::byte* const* inputs, size_t num_inputs, std::byte* output, size_t count);

 private:
  void ReduceBlock(const std::byte* const* inputs, size_t num_inputs, size_t offset, std::byte* output, size_t count);
  const std::byte* Prepare(const std::byte* input, size_t index, size_t count);
  void Combine(const std::byte* const* group, size_t members, std::byte* result, size_t count, bool last);
  void Finish(std::byte* block, size_t count);
  void Store(std::byte* block, std::byte* output, size_t count);
  void Multiply(std::byte* block, size_t count, double factor);
  void Divide(std::byte* block, size_t count, int64_t divisor);
  void Copy(const std::byte* from, std::byte* to, size_t bytes);

  const KernelTable& kernels_;
  const Reduction& reduction_;
  const Dtype computing_;
  const bool widens_;  // the inputs
  const bool rounds_;  // the result
  const bool stream_;
  const size_t input_size_;
  const size_t output_size_;
  const size_t computing_size_;
  const CombineKernel combine_;
  const Finisher finisher_;
  alignas(kCacheLine) std::byte result_[kBlockBytes];
  alignas(kCacheLine) std::byte prepared_[kMaxPrepared][kBlockBytes];
};

void BlockReducer::Run(const std::byte* const* inputs, size_t num_inputs, std::byte* output, size_t count) {
  const size_t block = kBlockBytes / computing_size_;
  size_t first = block;
  if (stream_) {  // a short first block, so that the others begin on a cache line
    const size_t past = reinterpret_cast<uintptr_t>(output) % kCacheLine;
    if (past != 0) first = (kCacheLine - past) / output_size_;
  }
  for (size_t done = 0, n = std::min(first, count); done < count; done += n, n = std::min(block, count - done)) {
    ReduceBlock(inputs, num_inputs, done * input_size_, output + done * output_size_, n);
  }
}

// `offset` is where the block begins in the inputs, in bytes.
void BlockReducer::ReduceBlock(const std::byte* const* inputs, size_t num_inputs, size_t offset, std::byte* output,
                               size_t count) {
  const size_t arity = MaxCombineInputs(computing_, reduction_.op);
  // Straight into the output where nothing is left to do with the result, unless later inputs might
  // be the output. (An output that is wider than the inputs is none of them.)
  const bool direct = !rounds_ && !stream_ && num_inputs <= arity;
  std::byte* result = direct ? output : result_;
  const std::byte* group[kMaxPrepared];
  size_t taken = std::min(arity, num_inputs);
  for (size_t i = 0; i < taken; ++i) group[i] = Prepare(inputs[i] + offset, i, count);
  if (num_inputs == 1) {
    if (group[0] != result) std::memcpy(result, group[0], count * computing_size_);
  } else {
    Combine(group, taken, result, count, taken == num_inputs);
  }
  while (taken < num_inputs) {
    group[0] = result;
    size_t members = 1;
    for (; members < arity && taken < num_inputs; ++members, ++taken) {
      group[members] = Prepare(inputs[taken] + offset, members, count);
    }
    Combine(group, members, result, count, taken == num_inputs);
  }
  if (num_inputs == 1 || finisher_.kernel == nullptr) Finish(result, count);
  if (!direct) Store(result, output, count);
}

void BlockReducer::Combine(const std::byte* const* group, size_t members, std::byte* result, size_t count, bool last) {
  if (last && finisher_.kernel != nullptr) return finisher_.kernel(group, members, result, count, finisher_.number);
  combine_(group, members, result, count);
}

const std::byte* BlockReducer::Prepare(const std::byte* input, size_t index, size_t count) {
  std::byte* block = prepared_[index];
  if (widens_) {
    (reduction_.dtype == Dtype::kFloat16 ? kernels_.widen_float16 : kernels_.widen_bfloat16)(input, block, count);
  } else if (!reduction_.scales_input()) {
    return input;
  } else {
    std::memcpy(block, input, count * input_size_);
  }
  if (reduction_.scales_input()) Multiply(block, count, reduction_.prescale);
  return block;
}

void BlockReducer::Finish(std::byte* block, size_t count) {
  if (reduction_.postscale != 1.0) Multiply(block, count, reduction_.postscale);
  if (reduction_.divisor != 1) Divide(block, count, reduction_.divisor);
}

// `block` may be overwritten.
void BlockReducer::Store(std::byte* block, std::byte* output, size_t count) {
  if (rounds_) {
    std::byte* rounded = stream_ ? prepared_[0] : output;
    (reduction_.dtype == Dtype::kFloat16 ? kernels_.round_float16 : kernels_.round_bfloat16)(block, rounded, count);
    block = rounded;
  }
  if (block != output) Copy(block, output, count * output_size_);
}

void BlockReducer::Copy(const std::byte* from, std::byte* to, size_t bytes) {
  if (stream_ && reinterpret_cast<uintptr_t>(to) % kCacheLine == 0) {
    kernels_.stream_copy(from, to, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void BlockReducer::Multiply(std::byte* block, size_t count, double factor) {
  if (computing_ == Dtype::kFloat32) return kernels_.multiply_float32(block, block, count, static_cast<float>(factor));
  if (computing_ == Dtype::kFloat64) return kernels_.multiply_float64(block, block, count, factor);
  ScaleIntegers(computing_, block, count, factor);
}

void BlockReducer::Divide(std::byte* block, size_t count, int64_t divisor) {
  if (IsFloating(computing_) && IsPowerOfTwo(divisor))
    return Multiply(block, count, 1.0 / static_cast<double>(divisor));
  if (computing_ == Dtype::kFloat32) return kernels_.divide_float32(block, block, count, static_cast<float>(divisor));
  if (computing_ == Dtype::kFloat64) return kernels_.divide_float64(block, block, count, static_cast<double>(divisor));
  DivideIntegers(computing_, block, count, divisor);
}

void CopyArray(const KernelTable& kernels, const std::byte* from, std::byte* to, size_t bytes, bool stream) {
  if (from == to) return;
  if (!stream) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t past = reinterpret_cast<uintptr_t>(to) % kCacheLine;
  const size_t head = std::min(past == 0 ? 0 : kCacheLine - past, bytes);
  std::memcpy(to, from, head);
  kernels.stream_copy(from + head, to + head, bytes - head);
  StreamFence();
}

}  // namespace

void ReduceArraysWith(const KernelTable& kernels, const Reduction& reduction, const std::byte* const* inputs,
                      size_t num_inputs, std::byte* output, size_t count, bool stream) {
  if (count == 0) return;
  const size_t size = reduction.output_size();
  const bool converts = reduction.wide_input || reduction.wide_output;
  const bool plain = !converts && !reduction.scales_input() && !reduction.scales_output();
  // Lines can only be written whole if elements do not straddle them.
  stream = stream && reinterpret_cast<uintptr_t>(output) % size == 0;
  if (plain && num_inputs == 1) return CopyArray(kernels, inputs[0], output, count * size, stream);
  if (plain && !stream) {
    if (num_inputs == 2 && reduction.dtype == Dtype::kBfloat16) {
      return kernels.combine_bfloat16[static_cast<int>(reduction.op)](inputs, output, count);
    }
    if (!IsHalf(reduction.dtype) && num_inputs <= MaxCombineInputs(reduction.dtype, reduction.op)) {
      const CombineKernel combine = kernels.combine[static_cast<int>(reduction.dtype)][static_cast<int>(reduction.op)];
      return combine(inputs, num_inputs, output, count);
    }
  }
  if (!stream && num_inputs > 1 && num_inputs <= MaxCombineInputs(reduction.dtype, reduction.op)) {
    const Finisher finisher = FinisherOf(kernels, reduction, reduction.dtype);
    if (finisher.kernel != nullptr && !reduction.scales_input())
      return finisher.kernel(inputs, num_inputs, output, count, finisher.number);
  }
  BlockReducer(kernels, reduction, stream).Run(inputs, num_inputs, output, count);
  if (stream) StreamFence();
}

}  // namespace tfc
