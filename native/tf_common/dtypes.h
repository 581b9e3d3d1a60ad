// TensorFlow's element types as the library's.
#ifndef TFCOLLECTIVE_TF_COMMON_DTYPES_H_
#define TFCOLLECTIVE_TF_COMMON_DTYPES_H_

#include <cstdint>

#include "tfcollective/tfcollective.h"

namespace tfc_tf {

// The tfc_dtype of a TF_DataType or a tensorflow::DataType, whose numbers are equal; -1 if there is none.
constexpr int32_t TfcDtypeOf(int type) {
  switch (type) {
    case 1:
      return TFC_FLOAT32;
    case 2:
      return TFC_FLOAT64;
    case 3:
      return TFC_INT32;
    case 4:
      return TFC_UINT8;
    case 5:
      return TFC_INT16;
    case 6:
      return TFC_INT8;
    case 9:
      return TFC_INT64;
    case 10:
      return TFC_BOOL;
    case 14:
      return TFC_BFLOAT16;
    case 17:
      return TFC_UINT16;
    case 19:
      return TFC_FLOAT16;
    case 22:
      return TFC_UINT32;
    case 23:
      return TFC_UINT64;
    default:
      return -1;
  }
}

}  // namespace tfc_tf

#endif  // TFCOLLECTIVE_TF_COMMON_DTYPES_H_
