#include "collectives/transport/tcp/send_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace tfc {
namespace {

constexpr size_t kMaxPieces = 256;              // below IOV_MAX, and small enough for the stack
constexpr size_t kTurnBytes = size_t{1} << 20;  // then receiving gets its turn

bool IsReply(FrameKind kind) { return kind == FrameKind::kAnswer || kind == FrameKind::kGrant; }

}  // namespace

FrameHeader SendStream::HeaderOf(FrameKind kind, const Tag& tag, uint64_t length) {
  return FrameHeader{kFrameMagic, tag.channel, tag.step,          kind, tag.sequence, tag.signature,
                     generation_, length,      room_->TakeFreed()};
}

void SendStream::Queue(Request* request) {
  if (!waiting_.empty() || !Place(request)) waiting_.push_back(request);
}

// Sends or announces the request; false if neither is possible now.
bool SendStream::Place(Request* request) {
  const uint64_t length = request->cursor.total();
  if (room_->Take(length)) {
    const bool ask = asking_ == nullptr && room_->low();
    if (ask) asking_ = request;
    frames_.push_back(Frame{HeaderOf(ask ? FrameKind::kAsking : FrameKind::kEager, request->tag, length), request});
    return true;
  }
  if (announced_.size() >= kMaxAnnounced || !announced_.emplace(KeyOf(request->tag), request).second) return false;
  frames_.push_back(Frame{HeaderOf(FrameKind::kAnnounce, request->tag, length), nullptr});
  return true;
}

void SendStream::PlaceWaiting() {
  while (!waiting_.empty() && Place(waiting_.front())) waiting_.pop_front();
}

// Behind the frame that has begun to leave and behind earlier replies.
void SendStream::Reply(FrameKind kind, const FrameHeader& to, Request* completes) {
  const bool begun = header_sent_ > 0 && !IsReply(frames_.front().header.kind);
  const Tag tag = {to.channel, to.step, to.sequence, to.signature};
  const auto place = frames_.begin() + static_cast<std::ptrdiff_t>(replies_ + (begun ? 1 : 0));
  frames_.insert(place, Frame{HeaderOf(kind, tag, to.length), completes});
  ++replies_;
}

Status SendStream::OnReturned(uint64_t bytes) {
  if (bytes == 0) return Status::Ok();
  if (!room_->Restore(bytes)) return Status(Code::kProtocol, "it returned more room than this rank had taken");
  PlaceWaiting();
  return Status::Ok();
}

Status SendStream::OnGrant(const FrameHeader& grant) {
  const auto found = announced_.find(KeyOf(grant));
  if (found == announced_.end() || found->second->cursor.total() != grant.length)
    return Status(Code::kProtocol, "it asked for a message that this rank has not announced");
  Request* request = found->second;
  announced_.erase(found);
  frames_.push_back(Frame{HeaderOf(FrameKind::kGranted, request->tag, grant.length), request});
  PlaceWaiting();
  return Status::Ok();
}

Status SendStream::OnAnswer(const FrameHeader& answer) {
  if (asking_ == nullptr || !asked_ || !(KeyOf(asking_->tag) == KeyOf(answer)))
    return Status(Code::kProtocol, "it answered a message that did not ask");
  asking_->done = true;
  asking_ = nullptr;
  asked_ = false;
  return Status::Ok();
}

bool SendStream::HasUnfinished() const {
  return asking_ != nullptr || !announced_.empty() || !waiting_.empty() ||
         std::any_of(frames_.begin(), frames_.end(), [](const Frame& frame) { return HasPayload(frame.header.kind); });
}

void SendStream::Abandon() {
  for (const Frame& frame : frames_)
    if (frame.header.kind == FrameKind::kAnswer && frame.request != nullptr) frame.request->done = true;
}

size_t SendStream::Collect(iovec* pieces, size_t capacity) const {
  size_t count = 0;
  size_t skipped = header_sent_;
  for (const Frame& frame : frames_) {
    if (capacity - count < 2) break;
    if (skipped < sizeof(FrameHeader)) {
      const auto* header = reinterpret_cast<const std::byte*>(&frame.header) + skipped;
      pieces[count++] = iovec{const_cast<std::byte*>(header), sizeof(FrameHeader) - skipped};
    }
    skipped = 0;
    if (HasPayload(frame.header.kind)) count += frame.request->cursor.Fill(pieces + count, capacity - count);
  }
  return count;
}

// Only the first frame can be partly written, so everything is taken from the front.
void SendStream::Account(size_t sent) {
  while (!frames_.empty()) {
    const Frame& frame = frames_.front();
    const size_t of_header = std::min(sent, sizeof(FrameHeader) - header_sent_);
    header_sent_ += of_header;
    sent -= of_header;
    if (HasPayload(frame.header.kind)) sent -= frame.request->cursor.Advance(sent);
    if (header_sent_ < sizeof(FrameHeader)) return;
    if (HasPayload(frame.header.kind) && frame.request->cursor.left() > 0) return;
    EndFrame();
  }
}

void SendStream::EndFrame() {
  const Frame frame = frames_.front();
  frames_.pop_front();
  header_sent_ = 0;
  if (IsReply(frame.header.kind)) --replies_;
  if (frame.header.kind == FrameKind::kAsking) {
    asked_ = true;
  } else if (frame.request != nullptr) {
    frame.request->done = true;
  }
}

SendStream::Outcome SendStream::Pump(int fd) {
  Outcome outcome;
  std::array<iovec, kMaxPieces> pieces;
  while (!frames_.empty() && outcome.bytes < kTurnBytes) {
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
