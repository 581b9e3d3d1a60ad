#include "tf_ops/attributes.h"

#include <optional>

#include "tf_ops/factor.h"

namespace tfc_ops {

std::string AttributeReader::String(const char* name) {
  if (!ok()) return "";
  int32_t list_size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
  if (!ok() || bytes <= 0) return "";
  std::string value(static_cast<size_t>(bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_.get());
  return value;
}

int32_t AttributeReader::Int(const char* name) {
  int32_t value = 0;
  if (ok()) TF_OpKernelConstruction_GetAttrInt32(construction_, name, &value, status_.get());
  return value;
}

double AttributeReader::Float(const char* name) {
  float value = 0;
  if (ok()) TF_OpKernelConstruction_GetAttrFloat(construction_, name, &value, status_.get());
  return value;
}

double AttributeReader::Factor(const char* name) {
  const std::string text = String(name);
  if (!ok()) return 1.0;
  const std::optional<double> factor = ParseFactor(text);
  if (!factor) TF_SetStatus(status_.get(), TF_INVALID_ARGUMENT, BadFactor(name, text).c_str());
  return factor.value_or(1.0);
}

bool AttributeReader::Finish() {
  if (ok()) return true;
  TF_OpKernelConstruction_Failure(construction_, status_.get());
  return false;
}

CommonAttributes ReadCommon(AttributeReader& reader) {
  return CommonAttributes{reader.String("tensor_name"), reader.Int("process_set_id"), reader.Float("timeout")};
}

ReductionAttributes ReadReduction(AttributeReader& reader) {
  return ReductionAttributes{reader.Int("op"), reader.Factor("prescale"), reader.Factor("postscale")};
}

}  // namespace tfc_ops
