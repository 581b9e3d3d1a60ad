// Element types, reductions and their names. The numbers are those of the C header.
#ifndef TFCOLLECTIVE_BASE_DTYPE_H_
#define TFCOLLECTIVE_BASE_DTYPE_H_

#include <cstddef>

namespace tfc {

enum class Dtype : int {
  kFloat16 = 0,
  kBfloat16 = 1,
  kFloat32 = 2,
  kFloat64 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUint8 = 8,
  kUint16 = 9,
  kUint32 = 10,
  kUint64 = 11,
  kBool = 12,
};

enum class Op : int { kAverage = 0, kSum = 1, kMin = 3, kMax = 4, kProduct = 5 };

size_t DtypeSize(Dtype dtype);       // bytes
const char* DtypeName(Dtype dtype);  // "float32"
const char* OpName(Op op);           // "sum"
bool IsDtype(int number);
bool IsOp(int number);
bool IsFloating(Dtype dtype);
bool IsHalf(Dtype dtype);  // a float of 16 bits

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_DTYPE_H_
