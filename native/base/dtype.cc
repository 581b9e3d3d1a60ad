#include "base/dtype.h"

namespace tfc {

size_t DtypeSize(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8:
    case Dtype::kUint8:
    case Dtype::kBool:
      return 1;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kInt16:
    case Dtype::kUint16:
      return 2;
    case Dtype::kFloat32:
    case Dtype::kInt32:
    case Dtype::kUint32:
      return 4;
    case Dtype::kFloat64:
    case Dtype::kInt64:
    case Dtype::kUint64:
      return 8;
  }
  return 0;
}

const char* DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kBfloat16:
      return "bfloat16";
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kInt16:
      return "int16";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kUint8:
      return "uint8";
    case Dtype::kUint16:
      return "uint16";
    case Dtype::kUint32:
      return "uint32";
    case Dtype::kUint64:
      return "uint64";
    case Dtype::kBool:
      return "bool";
  }
  return "unknown";
}

const char* OpName(Op op) {
  switch (op) {
    case Op::kAverage:
      return "average";
    case Op::kSum:
      return "sum";
    case Op::kMin:
      return "min";
    case Op::kMax:
      return "max";
    case Op::kProduct:
      return "product";
  }
  return "unknown";
}

bool IsDtype(int number) { return DtypeSize(static_cast<Dtype>(number)) != 0; }

bool IsOp(int number) { return number == 0 || number == 1 || (number >= 3 && number <= 5); }

bool IsFloating(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64;
}

bool IsHalf(Dtype dtype) { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16; }

}  // namespace tfc
