// Control messages as bytes: little-endian numbers, and texts and lists behind their lengths. Reading never trusts a
// length: a short or oversized message gives PROTOCOL.
//
// FieldsOf, beside a struct, names the fields that travel, once for both directions:
//   inline auto FieldsOf(const Place*) { return std::make_tuple(&Place::channel, &Place::sequence); }
// IsValid, beside an enum, says which of its values may arrive.
#ifndef TFCOLLECTIVE_CONTROL_WIRE_H_
#define TFCOLLECTIVE_CONTROL_WIRE_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tfc {

class WireWriter {
 public:
  template <typename T>
  WireWriter& Number(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
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
  template <typename T>
  WireWriter& Value(const T& value) {
    if constexpr (std::is_class_v<T>) {
      std::apply([&](auto... field) { (Value(value.*field), ...); }, FieldsOf(&value));
      return *this;
    } else {
      return Number(value);
    }
  }
  WireWriter& Value(const std::string& text) { return Text(text); }
  WireWriter& Value(const Status& status) { return Error(status); }
  template <typename T>
  WireWriter& Value(const std::vector<T>& list) {
    Number(static_cast<uint32_t>(list.size()));
    for (const T& value : list) Value(value);
    return *this;
  }
  template <typename Key, typename T>
  WireWriter& Value(const std::map<Key, T>& map) {
    Number(static_cast<uint32_t>(map.size()));
    for (const auto& [key, value] : map) Value(key).Value(value);
    return *this;
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
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
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
  template <typename T>
  void Value(T* value) {
    if constexpr (std::is_class_v<T>) {
      std::apply([&](auto... field) { (Value(&(value->*field)), ...); }, FieldsOf(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      *value = Number<uint8_t>() != 0;
    } else {
      *value = Number<T>();
      if constexpr (std::is_enum_v<T>) ok_ = ok_ && IsValid(*value);
    }
  }
  void Value(std::string* text) { *text = Text(); }
  void Value(Status* status) { *status = Error(); }
  template <typename T>
  void Value(std::vector<T>* list) {
    list->clear();
    for (auto left = Number<uint32_t>(); left > 0 && ok_; --left) Value(&list->emplace_back());
  }
  template <typename Key, typename T>
  void Value(std::map<Key, T>* map) {
    map->clear();
    for (auto left = Number<uint32_t>(); left > 0 && ok_; --left) {
      Key key{};
      Value(&key);
      Value(&(*map)[std::move(key)]);
    }
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

template <typename Message>
std::string Encode(const Message& message) {
  return WireWriter().Value(message).Take();
}

// PROTOCOL for bytes that are no such message.
template <typename Message>
Status Decode(const std::string& bytes, Message* message) {
  WireReader reader(bytes);
  reader.Value(message);
  return reader.Finish("a value is out of range, or the length is wrong");
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_CONTROL_WIRE_H_
