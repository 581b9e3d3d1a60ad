// Control messages as bytes: little-endian numbers and length-prefixed text. Reading never trusts a
// length: a short or oversized message gives PROTOCOL.
#ifndef TFCOLLECTIVE_CONTROL_WIRE_H_
#define TFCOLLECTIVE_CONTROL_WIRE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/status.h"

namespace tfc {

class WireWriter {
 public:
  template <typename T>
  WireWriter& Number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  WireWriter& Text(const std::string& text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  WireWriter& Error(const Status& status) {
    return Number(static_cast<int32_t>(status.code()))
        .Number(static_cast<int32_t>(status.peer()))
        .Number(static_cast<int32_t>(status.sys_errno()))
        .Text(status.message());
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first failed read everything reads as zero or empty; ask ok() once at the end.
class WireReader {
 public:
  explicit WireReader(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  T Number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string Text() {
    const auto size = Number<uint32_t>();
    if (!Has(size)) return "";
    std::string text = bytes_.substr(at_, size);
    at_ += size;
    return text;
  }
  Status Error() {
    const auto code = Number<int32_t>();
    const auto peer = Number<int32_t>();
    const auto sys_errno = Number<int32_t>();
    const std::string message = Text();
    if (code < 0 || code > static_cast<int32_t>(Code::kInternal)) ok_ = false;
    if (!ok_ || code == 0) return Status::Ok();
    return Status(static_cast<Code>(code), message, peer, sys_errno);
  }
  bool ok() const { return ok_; }
  Status Finish(const char* what) const {
    if (ok_ && at_ == bytes_.size()) return Status::Ok();
    return Status(Code::kProtocol, std::string("malformed control message: ") + what);
  }

 private:
  bool Has(size_t size) {
    if (!ok_ || size > bytes_.size() - at_) ok_ = false;
    return ok_;
  }
  const std::string& bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_CONTROL_WIRE_H_
