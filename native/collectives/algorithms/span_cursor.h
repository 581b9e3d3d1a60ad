// Walks once through a list of spans as if it were one piece of memory. Internal to algorithms/.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_SPAN_CURSOR_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_SPAN_CURSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/span.h"

namespace tfc {

// Borrows the list. A copy goes on from the same place. Never asked for more than is left.
template <typename Span>
class SpanCursor {
 public:
  explicit SpanCursor(const std::vector<Span>& spans) : span_(spans.data()) {}
  explicit SpanCursor(const Span* span) : span_(span) {}

  // Visits the next `size` bytes as contiguous pieces: visit(data, offset from here, size).
  template <typename Visitor>
  void Visit(size_t size, const Visitor& visit) {
    for (size_t done = 0; done < size;) {
      const size_t piece = std::min(size - done, span_->size - used_);
      if (piece > 0) visit(span_->data + used_, done, piece);
      done += piece;
      used_ += piece;
      if (used_ == span_->size) ++span_, used_ = 0;
    }
  }

  void Skip(size_t size) {
    Visit(size, [](auto*, size_t, size_t) {});
  }

  void CopyTo(std::byte* to, size_t size) {
    Visit(size, [to](const std::byte* data, size_t offset, size_t piece) { std::memcpy(to + offset, data, piece); });
  }

 private:
  const Span* span_;
  size_t used_ = 0;
};

using ConstCursor = SpanCursor<ConstSpan>;
using MutableCursor = SpanCursor<MutableSpan>;

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_SPAN_CURSOR_H_
