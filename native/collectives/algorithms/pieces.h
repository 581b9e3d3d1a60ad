// Finding, copying and reducing parts of span lists.
//
// Spans hold whole elements, and every part that an algorithm takes begins and ends between two
// elements, so no element is ever split.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_PIECES_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_PIECES_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/span.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

// A span list that finds byte ranges of its concatenation in logarithmic time. Borrows the list.
template <typename Span>
class SpanIndex {
 public:
  explicit SpanIndex(const std::vector<Span>& spans) : spans_(spans) {
    ends_.reserve(spans.size());
    for (const Span& span : spans) ends_.push_back(size() + span.size);
  }

  size_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  std::vector<Span> Slice(size_t begin, size_t end) const {
    std::vector<Span> result;
    auto found = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (; begin < end; ++found) {
      const Span& span = spans_[static_cast<size_t>(found - ends_.begin())];
      const size_t stop = std::min(*found, end);
      if (stop > begin) result.push_back(Span{span.data + (begin - (*found - span.size)), stop - begin});
      begin = stop;
    }
    return result;
  }

 private:
  const std::vector<Span>& spans_;
  std::vector<size_t> ends_;
};

// Visits two lists of equally many elements of `from_element` and `to_element` bytes piece by piece, a piece being
// contiguous in both: visit(from, to, elements before the piece, elements of the piece).
template <typename Visitor>
void ForEachPieceOf(size_t from_element, const ConstSpans& from, size_t to_element, const MutableSpans& to,
                    const Visitor& visit) {
  size_t from_index = 0, to_index = 0, from_used = 0, to_used = 0, done = 0;
  while (from_index < from.size() && to_index < to.size()) {
    const ConstSpan& source = from[from_index];
    const MutableSpan& target = to[to_index];
    const size_t count = std::min((source.size - from_used) / from_element, (target.size - to_used) / to_element);
    if (count > 0) visit(source.data + from_used, target.data + to_used, done, count);
    done += count;
    from_used += count * from_element;
    to_used += count * to_element;
    if (from_used == source.size) ++from_index, from_used = 0;
    if (to_used == target.size) ++to_index, to_used = 0;
  }
}

// The same of bytes.
template <typename Visitor>
void ForEachPiece(const ConstSpans& from, const MutableSpans& to, const Visitor& visit) {
  ForEachPieceOf(1, from, 1, to, visit);
}

// Copies `from` to `to` (equal total size); memory that is the same already is left alone.
void CopySpans(const ConstSpans& from, const MutableSpans& to);

// to = finish(from * prescale), element by element. As wide as the reduction says.
void ConvertSpans(const Reduction& reduction, const ConstSpans& from, const MutableSpans& to);

// The same; a copy where nothing is scaled. Not of wide spans.
void ScaleSpans(const Reduction& reduction, const ConstSpans& from, const MutableSpans& to);

// to = finish(partial (x) own * prescale): `partial` comes from ranks that have scaled it already.
// `to` may be `partial` or `own`.
void CombineSpans(const Reduction& reduction, const std::byte* partial, const ConstSpans& own, const MutableSpans& to);

// True if any byte lies in both lists.
bool Overlap(const ConstSpans& left, const MutableSpans& right);

// Byte offsets of `parts` nearly equal parts of `bytes` bytes: parts + 1 entries, every one a
// multiple of `element` bytes; the first parts are one element longer where it does not divide.
std::vector<size_t> EvenOffsets(size_t bytes, size_t element, int parts);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_PIECES_H_
