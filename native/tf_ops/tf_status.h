// The border between our error codes and TensorFlow's.
#ifndef TFCOLLECTIVE_TF_OPS_TF_STATUS_H_
#define TFCOLLECTIVE_TF_OPS_TF_STATUS_H_

#include <memory>
#include <string>

#include "tf_common/canonical_codes.h"
#include "tf_ops/tensorflow_c_api.h"
#include "tfcollective/tfcollective.h"

namespace tfc_tf::ops {

struct TfStatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
using TfStatus = std::unique_ptr<TF_Status, TfStatusDeleter>;

inline TfStatus NewTfStatus() { return TfStatus(TF_NewStatus()); }

// The TensorFlow code of a tfc_code; TF_UNKNOWN for a number that is none. None of them is UNAVAILABLE: inside
// a tf.function or a session TensorFlow turns that from any op but its own network ops into INTERNAL, and loses
// the payloads (2.15 and 2.21).
constexpr TF_Code TfCodeOf(int code) { return static_cast<TF_Code>(CanonicalCodeOf(code)); }

// The error of one op, without the weight of a tfc_error.
struct OpError {
  int32_t code = TFC_OK;
  int32_t peer = -1;
  std::string message;

  bool ok() const { return code == TFC_OK; }
  static OpError From(const tfc_error& error) { return OpError{error.code, error.peer, error.message}; }
  static OpError Invalid(std::string message) { return OpError{TFC_INVALID_ARGUMENT, -1, std::move(message)}; }
};

// The error as a TensorFlow status: mapped code; "<CODE>: <message>"; and, for programs, the payloads
// "tfcollective/code" and "tfcollective/peer" with the decimal numbers.
TfStatus ToTfStatus(const OpError& error);

// Converts a TF_Status; ok if it is TF_OK.
OpError FromTfStatus(const TfStatus& status);

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_TF_STATUS_H_
