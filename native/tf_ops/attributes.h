// Reads an op's attributes through TensorFlow's C interface.
#ifndef TFCOLLECTIVE_TF_OPS_ATTRIBUTES_H_
#define TFCOLLECTIVE_TF_OPS_ATTRIBUTES_H_

#include <cstdint>
#include <string>

#include "tf_common/attributes.h"
#include "tf_ops/tensorflow_c_api.h"
#include "tf_ops/tf_status.h"

namespace tfc_tf::ops {

// See tf_common/attributes.h. Keeps the first error.
class AttributeReader {
 public:
  explicit AttributeReader(TF_OpKernelConstruction* construction)
      : construction_(construction), status_(NewTfStatus()) {}

  std::string String(const char* name) {
    int32_t list_size = 0, bytes = 0;
    if (ok()) TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
    if (!ok() || bytes <= 0) return "";
    std::string value(static_cast<size_t>(bytes), '\0');
    TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_.get());
    return value;
  }
  int32_t Int(const char* name) {
    int32_t value = 0;
    if (ok()) TF_OpKernelConstruction_GetAttrInt32(construction_, name, &value, status_.get());
    return value;
  }
  double Float(const char* name) {
    float value = 0;
    if (ok()) TF_OpKernelConstruction_GetAttrFloat(construction_, name, &value, status_.get());
    return value;
  }
  void Fail(const std::string& message) {
    if (ok()) TF_SetStatus(status_.get(), TF_INVALID_ARGUMENT, message.c_str());
  }

  // Reports the first error to TensorFlow; true if there was none.
  bool Finish() {
    if (ok()) return true;
    TF_OpKernelConstruction_Failure(construction_, status_.get());
    return false;
  }

 private:
  bool ok() const { return TF_GetCode(status_.get()) == TF_OK; }

  TF_OpKernelConstruction* construction_;
  TfStatus status_;
};

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_ATTRIBUTES_H_
