// Our error codes as the canonical codes that TensorFlow, Abseil and gRPC share.
#ifndef TFCOLLECTIVE_TF_COMMON_CANONICAL_CODES_H_
#define TFCOLLECTIVE_TF_COMMON_CANONICAL_CODES_H_

#include "tfcollective/tfcollective.h"

namespace tfc_tf {

inline constexpr int kCanonicalUnknown = 2;

// kCanonicalUnknown for a number that is no tfc_code.
constexpr int CanonicalCodeOf(int code) {
  switch (code) {
    case TFC_OK:
      return 0;
    case TFC_INVALID_ARGUMENT:
      return 3;
    case TFC_FAILED_PRECONDITION:
    case TFC_MISMATCH:
    case TFC_PROTOCOL:
      return 9;  // FAILED_PRECONDITION
    case TFC_DEADLINE_EXCEEDED:
      return 4;
    case TFC_PEER_LOST:
    case TFC_ABORTED:
      return 10;  // not UNAVAILABLE: inside a tf.function or a session TensorFlow makes it an INTERNAL
    case TFC_CANCELLED:
      return 1;
    case TFC_RESOURCE_EXHAUSTED:
      return 8;
    case TFC_UNIMPLEMENTED:
      return 12;
    case TFC_IO:
    case TFC_DEVICE:
    case TFC_INTERNAL:
      return 13;  // INTERNAL
    default:
      return kCanonicalUnknown;
  }
}

}  // namespace tfc_tf

#endif  // TFCOLLECTIVE_TF_COMMON_CANONICAL_CODES_H_
