// Pieces of memory together with how far they have been sent or filled.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_CURSOR_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_CURSOR_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/span.h"

namespace tfc {

class Cursor {
 public:
  void Clear() {
    pieces_.clear();
    at_ = 0;
    left_ = 0;
    total_ = 0;
  }
  void Add(void* data, size_t size) {
    if (size == 0) return;
    pieces_.push_back(iovec{data, size});
    left_ += size;
    total_ += size;
  }
  void Assign(const ConstSpans& spans) {
    Clear();
    // iovec is one type for both directions; sendmsg does not write.
    for (const ConstSpan& span : spans) Add(const_cast<std::byte*>(span.data), span.size);
  }
  void Assign(const MutableSpans& spans) {
    Clear();
    for (const MutableSpan& span : spans) Add(span.data, span.size);
  }

  size_t left() const { return left_; }  // bytes
  size_t total() const { return total_; }

  // Writes what is left, at most `capacity` pieces, and returns their number.
  size_t Fill(iovec* out, size_t capacity) const {
    const size_t count = std::min(capacity, pieces_.size() - at_);
    std::copy_n(pieces_.begin() + static_cast<std::ptrdiff_t>(at_), count, out);
    return count;
  }

  // Passes over up to `size` bytes; returns how many there were.
  size_t Advance(size_t size) {
    size_t moved = 0;
    while (moved < size && left_ > 0) moved += Pass(std::min(size - moved, pieces_[at_].iov_len));
    return moved;
  }

  // Fills up to `size` bytes from memory; returns how many had room.
  size_t CopyIn(const std::byte* from, size_t size) {
    size_t moved = 0;
    while (moved < size && left_ > 0) {
      const size_t take = std::min(size - moved, pieces_[at_].iov_len);
      std::memcpy(pieces_[at_].iov_base, from + moved, take);
      moved += Pass(take);
    }
    return moved;
  }

 private:
  // Passes over bytes of the current piece only.
  size_t Pass(size_t size) {
    iovec& piece = pieces_[at_];
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + size;
    piece.iov_len -= size;
    left_ -= size;
    if (piece.iov_len == 0) ++at_;
    return size;
  }

  std::vector<iovec> pieces_;
  size_t at_ = 0;
  size_t left_ = 0;
  size_t total_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_CURSOR_H_
