// Reads the attributes of a call in a compiled program.
#ifndef TFCOLLECTIVE_TF_XLA_ATTRIBUTES_H_
#define TFCOLLECTIVE_TF_XLA_ATTRIBUTES_H_

#include <cstdint>
#include <string>

#include "tf_common/attributes.h"
#include "tf_xla/ffi_api.h"

namespace tfc_tf::xla {

// See tf_common/attributes.h. Keeps the first error.
class AttributeReader {
 public:
  explicit AttributeReader(const Attributes& attributes) : attributes_(attributes) {}

  std::string String(const char* name) {
    const auto* text = static_cast<const Text*>(Find(name, kTextAttribute));
    return text == nullptr ? "" : std::string(text->begin, text->size);
  }
  int32_t Int(const char* name) { return static_cast<int32_t>(Number<int64_t>(name, kS64)); }
  double Float(const char* name) { return Number<double>(name, kF64); }
  void Fail(const std::string& message) {
    if (error_.empty()) error_ = message;
  }

  const std::string& error() const { return error_; }  // empty: none

 private:
  template <typename Value>
  Value Number(const char* name, int dtype) {
    const auto* scalar = static_cast<const Scalar*>(Find(name, kScalarAttribute));
    if (scalar != nullptr && scalar->dtype == dtype) return *static_cast<const Value*>(scalar->value);
    Fail(std::string("the attribute ") + name + " is of another type");
    return Value();
  }

  const void* Find(const std::string& name, int type) {
    for (int64_t i = 0; i < attributes_.size; ++i) {
      const Text& text = *attributes_.names[i];
      if (std::string(text.begin, text.size) == name && attributes_.types[i] == type) return attributes_.values[i];
    }
    Fail("the attribute " + name + " is missing");
    return nullptr;
  }

  const Attributes& attributes_;
  std::string error_;
};

}  // namespace tfc_tf::xla

#endif  // TFCOLLECTIVE_TF_XLA_ATTRIBUTES_H_
