#include "tf_ops/tf_status.h"

namespace tfc_tf::ops {
namespace {

constexpr int kFirstCode = TFC_OK;
constexpr int kLastCode = TFC_INTERNAL;

constexpr bool EveryCodeIsMapped() {
  for (int code = kFirstCode; code <= kLastCode; ++code) {
    if (TfCodeOf(code) == TF_UNKNOWN) return false;
  }
  return TfCodeOf(kLastCode + 1) == TF_UNKNOWN;
}
static_assert(EveryCodeIsMapped(), "a tfc_code has no TensorFlow code");

// TensorFlow's own errors seldom reach us: allocation (RESOURCE_EXHAUSTED) and misuse.
int32_t TfcCodeOf(TF_Code code) {
  switch (code) {
    case TF_OK:
      return TFC_OK;
    case TF_INVALID_ARGUMENT:
      return TFC_INVALID_ARGUMENT;
    case TF_RESOURCE_EXHAUSTED:
      return TFC_RESOURCE_EXHAUSTED;
    case TF_CANCELLED:
      return TFC_CANCELLED;
    default:
      return TFC_INTERNAL;
  }
}

}  // namespace

TfStatus ToTfStatus(const OpError& error) {
  TfStatus status = NewTfStatus();
  const std::string message = std::string(tfc_code_name(error.code)) + ": " + error.message;
  TF_SetStatus(status.get(), TfCodeOf(error.code), message.c_str());
  TF_SetPayload(status.get(), "tfcollective/code", std::to_string(error.code).c_str());
  TF_SetPayload(status.get(), "tfcollective/peer", std::to_string(error.peer).c_str());
  return status;
}

OpError FromTfStatus(const TfStatus& status) {
  return OpError{TfcCodeOf(TF_GetCode(status.get())), -1, TF_Message(status.get())};
}

}  // namespace tfc_tf::ops
