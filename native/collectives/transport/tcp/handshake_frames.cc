#include "collectives/transport/tcp/handshake_frames.h"

#include <sys/socket.h>

#include <cerrno>

namespace tfc::handshake_internal {
namespace {

Header HeaderOf(const Buffer& buffer) {
  Header header;
  std::memcpy(&header, buffer.bytes.data(), sizeof(header));
  return header;
}

Status CheckHeader(const Buffer& buffer, Kind kind) {
  const Header header = HeaderOf(buffer);
  if (header.magic != kMagic) return Status(Code::kProtocol, "it does not speak tfcollective's protocol");
  if (header.version != kVersion) {
    return Status(Code::kProtocol, "it speaks version " + std::to_string(header.version) + " of the protocol, not " +
                                       std::to_string(kVersion) +
                                       ": install the same version of tfcollective on all hosts");
  }
  if (header.kind != static_cast<uint16_t>(kind)) {
    return Status(Code::kProtocol, "it sent frame " + std::to_string(header.kind) + " where frame " +
                                       std::to_string(static_cast<uint16_t>(kind)) + " was due");
  }
  if (header.body_size != buffer.size - sizeof(Header)) {
    return Status(Code::kProtocol, "it announced " + std::to_string(header.body_size) + " bytes where " +
                                       std::to_string(buffer.size - sizeof(Header)) + " were due");
  }
  return Status::Ok();
}

bool IsEndOfStream(int err) { return err == ECONNRESET || err == EPIPE || err == ETIMEDOUT; }

Status StreamError(const char* call, int err) {
  if (IsEndOfStream(err)) return Status(Code::kPeerLost, "it closed the connection", kNoPeer, err);
  return Status::FromErrno(call, err);
}

}  // namespace

const char* DecisionText(Decision decision) {
  switch (decision) {
    case Decision::kAccepted:
      return "accepted";
    case Decision::kWrongGeneration:
      return "the generation is another one";
    case Decision::kWrongReceiver:
      return "the connection is meant for another rank";
    case Decision::kWrongSender:
      return "the connecting rank cannot be";
    case Decision::kWrongPurpose:
      return "the purpose is unknown";
  }
  return "for a reason that this version does not know";
}

void Append(const Buffer& buffer, std::vector<uint8_t>* transcript) {
  transcript->insert(transcript->end(), buffer.bytes.data(), buffer.bytes.data() + buffer.size);
}

Digest Prove(const JobKey& key, const char* label, const std::vector<uint8_t>& transcript, const void* more,
             size_t more_size) {
  HmacSha256 hmac(key.data(), key.size());
  hmac.Update(label, std::strlen(label) + 1);  // with its NUL, so that no label is the start of another
  hmac.Update(transcript.data(), transcript.size());
  hmac.Update(more, more_size);
  return hmac.Finish();
}

Result<Moved> Read(int fd, Kind kind, Buffer* buffer) {
  while (buffer->done < buffer->size) {
    const size_t goal = buffer->done < sizeof(Header) ? sizeof(Header) : buffer->size;
    const ssize_t got = ::recv(fd, buffer->bytes.data() + buffer->done, goal - buffer->done, MSG_DONTWAIT);
    if (got == 0) return Status(Code::kPeerLost, "it closed the connection");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved::kBlocked;
      return StreamError("recv", errno);
    }
    buffer->done += static_cast<size_t>(got);
    if (buffer->done == sizeof(Header)) TFC_RETURN_IF_ERROR(CheckHeader(*buffer, kind));
  }
  return Moved::kAll;
}

Result<Moved> Write(int fd, Buffer* buffer) {
  while (buffer->done < buffer->size) {
    const ssize_t sent =
        ::send(fd, buffer->bytes.data() + buffer->done, buffer->size - buffer->done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved::kBlocked;
      return StreamError("send", errno);
    }
    buffer->done += static_cast<size_t>(sent);
  }
  return Moved::kAll;
}

bool IsOtherVersion(const Buffer& buffer) {
  if (buffer.done < sizeof(Header)) return false;
  const Header header = HeaderOf(buffer);
  return header.magic == kMagic && header.version != kVersion;
}

void SayVersion(int fd) {
  Header header;
  header.kind = static_cast<uint16_t>(Kind::kChallenge);
  (void)::send(fd, &header, sizeof(header), MSG_DONTWAIT | MSG_NOSIGNAL);  // nothing else has been sent: it fits
  // What is left unread when the connection is closed resets it, and a reset may overtake the header.
  std::array<uint8_t, 1024> rest;
  (void)::recv(fd, rest.data(), rest.size(), MSG_DONTWAIT);
}

}  // namespace tfc::handshake_internal
