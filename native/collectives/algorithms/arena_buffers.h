// Checking and copying buffers in the arena's algorithms. Internal to algorithms/.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_BUFFERS_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_BUFFERS_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "base/span.h"
#include "base/status.h"
#include "collectives/algorithms/span_cursor.h"
#include "collectives/reduce/reduce.h"

namespace tfc {

// Results of this size and more bypass the cache: they do not fit it next to what is staged.
inline constexpr size_t kStreamFrom = size_t{8} << 20;

// Copies contiguous bytes; memory that is the same is left alone.
inline void CopyBytes(const std::byte* from, std::byte* to, size_t size, bool stream) {
  Reduction copy;
  copy.dtype = Dtype::kUint8;
  ReduceArrays(copy, &from, 1, to, size, stream);
}

inline void CopyOut(const std::byte* from, MutableCursor* to, size_t size, bool stream) {
  to->Visit(size, [from, stream](std::byte* data, size_t offset, size_t piece) {
    CopyBytes(from + offset, data, piece, stream);
  });
}

inline Status CheckSize(const char* what, size_t actual, size_t expected) {
  if (actual == expected) return Status::Ok();
  return Status(Code::kInvalidArgument,
                std::string(what) + " has " + std::to_string(actual) + " bytes instead of " + std::to_string(expected));
}

// Spans of reductions hold whole elements.
inline Status CheckElements(const ConstSpans& spans, size_t element) {
  for (const ConstSpan& span : spans) {
    if (span.size % element != 0) return Status(Code::kInvalidArgument, "a span holds no whole number of elements");
  }
  return Status::Ok();
}

inline Status CheckElements(const MutableSpans& spans, size_t element) {
  for (const MutableSpan& span : spans) {
    if (span.size % element != 0) return Status(Code::kInvalidArgument, "a span holds no whole number of elements");
  }
  return Status::Ok();
}

// Byte offsets of one part for each local rank.
inline Status CheckOffsets(const std::vector<size_t>& offsets, int local_size) {
  if (offsets.size() != static_cast<size_t>(local_size) + 1 || offsets.front() != 0) {
    return Status(Code::kInvalidArgument, "offsets must begin at 0 and have one entry more than there are ranks");
  }
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) return Status(Code::kInvalidArgument, "offsets must not decrease");
  }
  return Status::Ok();
}

// One rank's part of a buffer: where its next bytes are, and how many are left.
template <typename Cursor>
struct Part {
  Cursor cursor;
  size_t left;
};

// Part i has the bytes [offsets[i], offsets[i+1]) of the spans.
template <typename Cursor, typename Spans>
std::vector<Part<Cursor>> PartsOf(const Spans& spans, const std::vector<size_t>& offsets) {
  std::vector<Part<Cursor>> parts;
  Cursor cursor(spans);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    parts.push_back({cursor, offsets[i + 1] - offsets[i]});
    cursor.Skip(offsets[i + 1] - offsets[i]);
  }
  return parts;
}

template <typename Cursor>
bool AnyLeft(const std::vector<Part<Cursor>>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const Part<Cursor>& part) { return part.left > 0; });
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_ARENA_BUFFERS_H_
