#include "base/span.h"

#include <algorithm>
#include <cstring>

namespace tfc {
namespace {

template <typename Span>
size_t Total(const std::vector<Span>& spans) {
  size_t total = 0;
  for (const Span& span : spans) total += span.size;
  return total;
}

template <typename Span>
std::vector<Span> Cut(const std::vector<Span>& spans, size_t begin, size_t end) {
  std::vector<Span> pieces;
  size_t at = 0;  // where the current span starts in the concatenation
  for (const Span& span : spans) {
    if (at >= end) break;
    const size_t from = std::max(begin, at);
    const size_t to = std::min(end, at + span.size);
    if (from < to) pieces.push_back(Span{span.data + (from - at), to - from});
    at += span.size;
  }
  return pieces;
}

}  // namespace

size_t TotalSize(const ConstSpans& spans) { return Total(spans); }
size_t TotalSize(const MutableSpans& spans) { return Total(spans); }

ConstSpans AsConst(const MutableSpans& spans) {
  ConstSpans result;
  result.reserve(spans.size());
  for (const MutableSpan& span : spans) result.push_back(ConstSpan{span.data, span.size});
  return result;
}

ConstSpans Slice(const ConstSpans& spans, size_t begin, size_t end) { return Cut(spans, begin, end); }
MutableSpans Slice(const MutableSpans& spans, size_t begin, size_t end) { return Cut(spans, begin, end); }

void Gather(const ConstSpans& from, std::byte* to) {
  for (const ConstSpan& span : from) {
    if (span.size == 0) continue;  // its data may be null, which memcpy must not see
    std::memcpy(to, span.data, span.size);
    to += span.size;
  }
}

void Scatter(const std::byte* from, const MutableSpans& to) {
  for (const MutableSpan& span : to) {
    if (span.size == 0) continue;
    std::memcpy(span.data, from, span.size);
    from += span.size;
  }
}

}  // namespace tfc
