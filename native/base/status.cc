#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace tfc {
namespace {

bool IsExhaustion(int err) {
  return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS || err == ENOSPC || err == EADDRINUSE;
}

std::string ErrnoText(int err) {
  char buffer[128];
  return strerror_r(err, buffer, sizeof(buffer));  // GNU: may return static text instead of the buffer
}

}  // namespace

const char* CodeName(int code) {
  switch (static_cast<Code>(code)) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kMismatch:
      return "MISMATCH";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kPeerLost:
      return "PEER_LOST";
    case Code::kAborted:
      return "ABORTED";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kIo:
      return "IO";
    case Code::kDevice:
      return "DEVICE";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kProtocol:
      return "PROTOCOL";
    case Code::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

Status Status::FromErrno(const std::string& call, int err, int peer) {
  const Code code = IsExhaustion(err) ? Code::kResourceExhausted : Code::kIo;
  return Status(code, call + " failed: " + ErrnoText(err), peer, err);
}

const std::string& Status::NoMessage() {
  static const std::string none;
  return none;
}

Status Status::WithContext(const std::string& context) const {
  if (ok()) return *this;
  return Status(code_, message().empty() ? context : context + ": " + message(), peer_, sys_errno_);
}

}  // namespace tfc
