// Pieces of memory, and lists of them that are read and written as if they were one.
#ifndef TFCOLLECTIVE_BASE_SPAN_H_
#define TFCOLLECTIVE_BASE_SPAN_H_

#include <cstddef>
#include <vector>

namespace tfc {

struct ConstSpan {
  const std::byte* data = nullptr;
  size_t size = 0;  // bytes
};

struct MutableSpan {
  std::byte* data = nullptr;
  size_t size = 0;  // bytes
};

using ConstSpans = std::vector<ConstSpan>;
using MutableSpans = std::vector<MutableSpan>;

size_t TotalSize(const ConstSpans& spans);
size_t TotalSize(const MutableSpans& spans);
ConstSpans AsConst(const MutableSpans& spans);

// The bytes [begin, end) of the concatenation, as pieces of the same memory. Never copies.
ConstSpans Slice(const ConstSpans& spans, size_t begin, size_t end);
MutableSpans Slice(const MutableSpans& spans, size_t begin, size_t end);

// Copies all of `from` to contiguous memory, and back. `to` / `from` must hold TotalSize bytes.
void Gather(const ConstSpans& from, std::byte* to);
void Scatter(const std::byte* from, const MutableSpans& to);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_SPAN_H_
