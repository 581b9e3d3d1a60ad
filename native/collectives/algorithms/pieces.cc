#include "collectives/algorithms/pieces.h"

#include <array>
#include <cstring>
#include <functional>

#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

constexpr size_t kScaleBlock = 4096;  // bytes: stays in the first-level cache and on any stack

}  // namespace

void CopySpans(const ConstSpans& from, const MutableSpans& to) {
  ForEachPiece(from, to, [](const std::byte* source, std::byte* target, size_t, size_t size) {
    if (source != target) std::memcpy(target, source, size);
  });
}

void ConvertSpans(const Reduction& reduction, const ConstSpans& from, const MutableSpans& to) {
  ForEachPieceOf(reduction.input_size(), from, reduction.output_size(), to,
                 [&](const std::byte* source, std::byte* target, size_t, size_t count) {
                   ReduceArrays(reduction, &source, 1, target, count);
                 });
}

void ScaleSpans(const Reduction& reduction, const ConstSpans& from, const MutableSpans& to) {
  if (!reduction.scales_input() && !reduction.scales_output()) return CopySpans(from, to);
  ConvertSpans(reduction, from, to);
}

void CombineSpans(const Reduction& reduction, const std::byte* partial, const ConstSpans& own, const MutableSpans& to) {
  const size_t element = DtypeSize(reduction.dtype);
  if (!reduction.scales_input()) {
    ForEachPiece(own, to, [&](const std::byte* source, std::byte* target, size_t offset, size_t size) {
      const std::byte* inputs[] = {partial + offset, source};
      ReduceArrays(reduction, inputs, 2, target, size / element);
    });
    return;
  }
  const Reduction scale = reduction.OnlyPrescale();
  const Reduction combine = reduction.OnlyFinish();
  alignas(64) std::array<std::byte, kScaleBlock> scaled;
  ForEachPiece(own, to, [&](const std::byte* source, std::byte* target, size_t offset, size_t size) {
    for (size_t done = 0; done < size; done += kScaleBlock) {
      const size_t count = std::min(kScaleBlock, size - done) / element;
      const std::byte* unscaled = source + done;
      ReduceArrays(scale, &unscaled, 1, scaled.data(), count);
      const std::byte* inputs[] = {partial + offset + done, scaled.data()};
      ReduceArrays(combine, inputs, 2, target + done, count);
    }
  });
}

bool Overlap(const ConstSpans& left, const MutableSpans& right) {
  const std::less<const std::byte*> before;  // a total order also over unrelated arrays
  for (const ConstSpan& one : left) {
    for (const MutableSpan& other : right) {
      if (before(one.data, other.data + other.size) && before(other.data, one.data + one.size)) return true;
    }
  }
  return false;
}

std::vector<size_t> EvenOffsets(size_t bytes, size_t element, int parts) {
  const size_t count = bytes / element, number = static_cast<size_t>(parts);
  std::vector<size_t> offsets(number + 1, 0);
  for (size_t part = 0; part < number; ++part) {
    offsets[part + 1] = offsets[part] + (count / number + (part < count % number ? 1 : 0)) * element;
  }
  return offsets;
}

}  // namespace tfc
