#include "collectives/transport/tcp/receive_stream.h"

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

bool ReceiveStream::HasKept(const Tag& tag) const {
  const auto found = kept_.find(KeyOf(tag));
  return found != kept_.end() && found->second.complete;
}

Status ReceiveStream::Post(Request* request) {
  const RequestKey key = KeyOf(request->tag);
  if (posted_.count(key) != 0) return Status(Code::kInvalidArgument, "a receive with the same tag is posted already");
  const auto kept = kept_.find(key);
  if (kept != kept_.end()) return TakeKept(request, &kept->second);
  const auto announced = announced_.find(key);
  if (announced != announced_.end()) {
    TFC_RETURN_IF_ERROR(Compare(announced->second, *request));
    out_->Reply(FrameKind::kGrant, announced->second);
    announced_.erase(announced);
  }
  posted_.emplace(key, request);
  return Status::Ok();
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
  room_->Free(kept->header.length);
  kept_.erase(KeyOf(request->tag));
  return Status::Ok();
}

Status ReceiveStream::OnHeader() {
  if (header_.magic != kFrameMagic || header_.kind > kLastFrameKind)
    return Status(Code::kProtocol, "it sent something that is no message");
  if (header_.generation != generation_)
    return Status(Code::kProtocol, "it sent a message of generation " + std::to_string(header_.generation));
  TFC_RETURN_IF_ERROR(out_->OnReturned(header_.returned));
  switch (header_.kind) {
    case FrameKind::kEager:
    case FrameKind::kAsking:
      return BeginEager();
    case FrameKind::kGranted:
      return BeginGranted();
    case FrameKind::kAnnounce:
      return OnAnnouncement();
    case FrameKind::kGrant:
      return out_->OnGrant(header_);
    case FrameKind::kAnswer:
      return out_->OnAnswer(header_);
  }
  return Status::Ok();
}

Status ReceiveStream::OnAnnouncement() {
  const RequestKey key = KeyOf(header_);
  const auto posted = posted_.find(key);
  if (posted != posted_.end()) {
    TFC_RETURN_IF_ERROR(Compare(header_, *posted->second));
    out_->Reply(FrameKind::kGrant, header_);
    return Status::Ok();
  }
  if (kept_.count(key) != 0 || !announced_.emplace(key, header_).second)
    return Status(Code::kProtocol, "it sent two messages with one tag" + Where(header_));
  if (announced_.size() > SendStream::kMaxAnnounced)
    return Status(Code::kProtocol, "it announced more than " + std::to_string(SendStream::kMaxAnnounced) + " messages");
  return Status::Ok();
}

Status ReceiveStream::BeginEager() {
  if (!room_->Occupy(header_.length)) {
    return Status(Code::kProtocol, "it sent a message of " + std::to_string(header_.length) +
                                       " bytes for which it had no room here" + Where(header_));
  }
  const auto posted = posted_.find(KeyOf(header_));
  if (posted == posted_.end()) return Keep();
  TFC_RETURN_IF_ERROR(Compare(header_, *posted->second));
  room_->Free(header_.length);
  BeginMessage(posted->second);
  return Status::Ok();
}

Status ReceiveStream::BeginGranted() {
  const auto posted = posted_.find(KeyOf(header_));
  if (posted == posted_.end())
    return Status(Code::kProtocol, "it sent a message that this rank has not asked for" + Where(header_));
  TFC_RETURN_IF_ERROR(Compare(header_, *posted->second));
  BeginMessage(posted->second);
  return Status::Ok();
}

Status ReceiveStream::Keep() {
  const RequestKey key = KeyOf(header_);
  if (kept_.count(key) != 0 || announced_.count(key) != 0)
    return Status(Code::kProtocol, "it sent two messages with one tag" + Where(header_));
  Kept kept;
  kept.header = header_;
  const size_t size = static_cast<size_t>(header_.length);
  kept.data.reset(new (std::nothrow) std::byte[size]);
  if (kept.data == nullptr) {
    return Status(Code::kResourceExhausted, "no memory for a message of " + std::to_string(size) + " bytes");
  }
  keep_cursor_.Clear();
  keep_cursor_.Add(kept.data.get(), size);
  kept_.emplace(key, std::move(kept));
  BeginMessage(nullptr);
  return Status::Ok();
}

// `target`: nullptr for one that is kept.
void ReceiveStream::BeginMessage(Request* target) {
  target_ = target;
  in_message_ = true;
  if (header_.length == 0) EndMessage();
}

void ReceiveStream::EndMessage() {
  if (target_ != nullptr) {
    posted_.erase(KeyOf(header_));
  } else {
    kept_[KeyOf(header_)].complete = true;
  }
  if (header_.kind == FrameKind::kAsking) {
    // This rank may close the connection when its receives are done, but not before the peer has its answer.
    out_->Reply(FrameKind::kAnswer, header_, target_);
  } else if (target_ != nullptr) {
    target_->done = true;
  }
  target_ = nullptr;
  in_message_ = false;
}

Status ReceiveStream::ParseStage() {
  while (true) {
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
    TFC_RETURN_IF_ERROR(OnHeader());
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
  while (outcome.status.ok() && outcome.bytes < kTurnBytes) {
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
