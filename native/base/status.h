// Errors as values: what went wrong, with whom, and the text for people.
#ifndef TFCOLLECTIVE_BASE_STATUS_H_
#define TFCOLLECTIVE_BASE_STATUS_H_

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <variant>

namespace tfc {

enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,
  kFailedPrecondition = 2,
  kMismatch = 3,
  kDeadlineExceeded = 4,
  kPeerLost = 5,
  kAborted = 6,
  kCancelled = 7,
  kIo = 8,
  kDevice = 9,
  kResourceExhausted = 10,
  kUnimplemented = 11,
  kProtocol = 12,
  kInternal = 13,
};

inline constexpr int kNoPeer = -1;

// "PEER_LOST" for Code::kPeerLost; "UNKNOWN" for a number that is no code.
const char* CodeName(int code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // Without memory for it the message stays empty.
  Status(Code code, std::string message, int peer = kNoPeer, int sys_errno = 0)
      : code_(code), peer_(peer), sys_errno_(sys_errno) {
    try {
      if (!message.empty()) message_ = std::make_shared<const std::string>(std::move(message));
    } catch (const std::bad_alloc&) {
    }
  }

  static Status Ok() { return Status(); }
  // "<call> failed: <text of err>", code kIo (kResourceExhausted where err says so).
  static Status FromErrno(const std::string& call, int err, int peer = kNoPeer);

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  int peer() const { return peer_; }
  int sys_errno() const { return sys_errno_; }
  const std::string& message() const { return message_ == nullptr ? NoMessage() : *message_; }

  // The same error with "<context>: " in front of its message.
  Status WithContext(const std::string& context) const;

 private:
  static const std::string& NoMessage();

  Code code_ = Code::kOk;
  int peer_ = kNoPeer;
  int sys_errno_ = 0;
  std::shared_ptr<const std::string> message_;  // a good status, which every call makes some of, has none
};

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : value_(std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const { return std::holds_alternative<T>(value_); }
  Status status() const { return ok() ? Status::Ok() : std::get<Status>(value_); }
  T& value() { return std::get<T>(value_); }
  const T& value() const { return std::get<T>(value_); }
  T Take() { return std::move(std::get<T>(value_)); }

 private:
  std::variant<Status, T> value_;
};

// Leaves the function with the error, if `expression` is one.
#define TFC_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::tfc::Status tfc_status_ = (expression);  \
    if (!tfc_status_.ok()) return tfc_status_; \
  } while (false)

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_STATUS_H_
