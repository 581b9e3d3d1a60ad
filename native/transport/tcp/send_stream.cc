#include "transport/tcp/send_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace tfc {
namespace {

constexpr size_t kMaxPieces = 256;              // below IOV_MAX, and small enough for the stack
constexpr size_t kTurnBytes = size_t{1} << 20;  // then receiving gets its turn

}  // namespace

size_t SendStream::Collect(iovec* pieces, size_t capacity) const {
  size_t count = 0;
  for (const Request* request : queue_) {
    if (capacity - count < 2) break;
    if (request->header_sent < sizeof(FrameHeader)) {
      const auto* header = reinterpret_cast<const std::byte*>(&request->header) + request->header_sent;
      pieces[count++] = iovec{const_cast<std::byte*>(header), sizeof(FrameHeader) - request->header_sent};
    }
    count += request->cursor.Fill(pieces + count, capacity - count);
  }
  return count;
}

// Only the first unfinished request can be partly written, so everything is taken from the front.
void SendStream::Account(size_t sent) {
  while (!queue_.empty()) {
    Request* request = queue_.front();
    const size_t of_header = std::min(sent, sizeof(FrameHeader) - request->header_sent);
    request->header_sent += of_header;
    sent -= of_header;
    sent -= request->cursor.Advance(sent);
    if (request->header_sent < sizeof(FrameHeader) || request->cursor.left() > 0) return;
    request->done = true;
    queue_.pop_front();
  }
}

SendStream::Outcome SendStream::Pump(int fd) {
  Outcome outcome;
  std::array<iovec, kMaxPieces> pieces;
  while (!queue_.empty() && outcome.bytes < kTurnBytes) {
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = Collect(pieces.data(), pieces.size());
    const ssize_t sent = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      outcome.blocked = errno == EAGAIN || errno == EWOULDBLOCK;
      outcome.error = outcome.blocked ? 0 : errno;
      return outcome;
    }
    outcome.bytes += static_cast<size_t>(sent);
    Account(static_cast<size_t>(sent));
  }
  return outcome;
}

}  // namespace tfc
