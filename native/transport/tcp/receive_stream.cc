#include "transport/tcp/receive_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace tfc {
namespace {

constexpr size_t kMaxPieces = 256;
constexpr size_t kTurnBytes = size_t{1} << 20;  // then sending gets its turn

std::string Where(const FrameHeader& header) {
  return " (channel " + std::to_string(header.channel) + ", operation " + std::to_string(header.sequence) + ", step " +
         std::to_string(header.step) + ")";
}

// Whether a message is what a posted receive expects.
Status Compare(const FrameHeader& header, const Request& request) {
  if (header.signature != request.tag.signature) {
    return Status(Code::kMismatch, "it runs another operation than this rank" + Where(header));
  }
  if (header.length != request.cursor.total()) {
    return Status(Code::kMismatch, "it sent " + std::to_string(header.length) + " bytes where this rank expects " +
                                       std::to_string(request.cursor.total()) + Where(header));
  }
  return Status::Ok();
}

ssize_t Receive(int fd, iovec* pieces, size_t count) {
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  while (true) {
    const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

size_t ReceiveStream::KeyHash::operator()(const Key& key) const {
  uint64_t mixed = key.sequence * 0x9e3779b97f4a7c15 ^ (uint64_t{key.channel} << 32 | key.step);
  mixed *= 0xff51afd7ed558ccd;
  return static_cast<size_t>(mixed ^ (mixed >> 32));
}

bool ReceiveStream::HasKept(const Tag& tag) const {
  const auto found = kept_.find(KeyOf(tag));
  return found != kept_.end() && found->second.complete;
}

Status ReceiveStream::Post(Request* request) {
  const Key key = KeyOf(request->tag);
  if (posted_.count(key) != 0) return Status(Code::kInvalidArgument, "a receive with the same tag is posted already");
  const auto kept = kept_.find(key);
  if (kept != kept_.end()) {
    TFC_RETURN_IF_ERROR(TakeKept(request, &kept->second));
  } else {
    posted_.emplace(key, request);
  }
  return stalled_ ? BeginMessage() : Status::Ok();
}

// The message is here, or its beginning is: then the rest goes straight to the spans.
Status ReceiveStream::TakeKept(Request* request, Kept* kept) {
  TFC_RETURN_IF_ERROR(Compare(kept->header, *request));
  const size_t missing = kept->complete ? 0 : keep_cursor_.left();
  request->cursor.CopyIn(kept->data.get(), static_cast<size_t>(kept->header.length) - missing);
  request->done = kept->complete;
  if (!kept->complete) {
    target_ = request;
    posted_.emplace(KeyOf(request->tag), request);
  }
  kept_bytes_ -= static_cast<size_t>(kept->header.length);
  kept_.erase(KeyOf(request->tag));
  return Status::Ok();
}

// Finds a place for the payload that header_ announces; stalls if there is none.
Status ReceiveStream::BeginMessage() {
  const auto found = posted_.find(KeyOf(header_));
  stalled_ = false;
  if (found == posted_.end()) {
    TFC_RETURN_IF_ERROR(Keep());
  } else {
    TFC_RETURN_IF_ERROR(Compare(header_, *found->second));
    target_ = found->second;
    in_message_ = true;
  }
  if (in_message_ && header_.length == 0) EndMessage();
  return Status::Ok();
}

Status ReceiveStream::Keep() {
  if (kept_.count(KeyOf(header_)) != 0) {
    return Status(Code::kProtocol, "it sent two messages with one tag" + Where(header_));
  }
  if (header_.length > options_.max_kept_bytes - kept_bytes_) {
    stalled_ = true;
    return Status::Ok();
  }
  Kept kept;
  kept.header = header_;
  const size_t size = static_cast<size_t>(header_.length);
  kept.data.reset(new (std::nothrow) std::byte[size]);
  if (kept.data == nullptr) {
    return Status(Code::kResourceExhausted, "no memory for a message of " + std::to_string(size) + " bytes");
  }
  keep_cursor_.Clear();
  keep_cursor_.Add(kept.data.get(), size);
  kept_bytes_ += size;
  kept_.emplace(KeyOf(header_), std::move(kept));
  target_ = nullptr;
  in_message_ = true;
  return Status::Ok();
}

void ReceiveStream::EndMessage() {
  if (target_ != nullptr) {
    target_->done = true;
    posted_.erase(KeyOf(header_));
  } else {
    kept_[KeyOf(header_)].complete = true;
  }
  target_ = nullptr;
  in_message_ = false;
}

Status ReceiveStream::ParseStage() {
  while (!stalled_) {
    const size_t here = stage_end_ - stage_begin_;
    if (in_message_) {
      if (here == 0) break;
      Cursor& cursor = target_ != nullptr ? target_->cursor : keep_cursor_;
      stage_begin_ += cursor.CopyIn(stage_.data() + stage_begin_, here);
      if (cursor.left() > 0) break;
      EndMessage();
      continue;
    }
    if (here < sizeof(FrameHeader)) break;
    std::memcpy(&header_, stage_.data() + stage_begin_, sizeof(header_));
    stage_begin_ += sizeof(header_);
    if (header_.magic != kFrameMagic) return Status(Code::kProtocol, "it sent something that is no message");
    if (header_.generation != options_.generation) {
      return Status(Code::kProtocol, "it sent a message of generation " + std::to_string(header_.generation));
    }
    TFC_RETURN_IF_ERROR(BeginMessage());
  }
  return Status::Ok();
}

// Into the payload first, then into the stage: so one call can end a message and begin the next.
ssize_t ReceiveStream::Read(int fd, size_t* room) {
  std::memmove(stage_.data(), stage_.data() + stage_begin_, stage_end_ - stage_begin_);
  stage_end_ -= stage_begin_;
  stage_begin_ = 0;
  std::array<iovec, kMaxPieces> pieces;
  size_t count = 0;
  *room = 0;
  if (in_message_) {
    const Cursor& cursor = target_ != nullptr ? target_->cursor : keep_cursor_;
    count = cursor.Fill(pieces.data(), pieces.size() - 1);
    for (size_t i = 0; i < count; ++i) *room += pieces[i].iov_len;
    if (*room < cursor.left()) return Receive(fd, pieces.data(), count);  // the stage comes after all of the payload
  }
  pieces[count++] = iovec{stage_.data() + stage_end_, stage_.size() - stage_end_};
  *room += stage_.size() - stage_end_;
  return Receive(fd, pieces.data(), count);
}

void ReceiveStream::Account(size_t got) {
  if (in_message_) {
    Cursor& cursor = target_ != nullptr ? target_->cursor : keep_cursor_;
    got -= cursor.Advance(got);
    if (cursor.left() == 0) EndMessage();
  }
  stage_end_ += got;
}

ReceiveStream::Outcome ReceiveStream::Pump(int fd) {
  Outcome outcome;
  const size_t behind_stall = stage_end_ - stage_begin_;
  outcome.status = ParseStage();
  outcome.bytes = behind_stall - (stage_end_ - stage_begin_);
  while (outcome.status.ok() && !stalled_ && outcome.bytes < kTurnBytes) {
    size_t room = 0;
    const ssize_t got = Read(fd, &room);
    if (got <= 0) {
      outcome.ended = got == 0;
      outcome.blocked = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      if (got < 0 && !outcome.blocked) outcome.error = errno;
      return outcome;
    }
    outcome.bytes += static_cast<size_t>(got);
    Account(static_cast<size_t>(got));
    outcome.status = ParseStage();
    if (static_cast<size_t>(got) < room) {
      outcome.blocked = true;  // less than there was room for: the socket is empty
      return outcome;
    }
  }
  return outcome;
}

}  // namespace tfc
