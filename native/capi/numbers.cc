// The numbers of the C header are our own enums' numbers: the two are cast into each other, so a slip here ends the
// build.
#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "communicator/operation.h"
#include "tfcollective/tfcollective.h"

namespace tfc {
namespace {

template <typename Ours, typename Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(Same(Code::kOk, TFC_OK));
static_assert(Same(Code::kInvalidArgument, TFC_INVALID_ARGUMENT));
static_assert(Same(Code::kFailedPrecondition, TFC_FAILED_PRECONDITION));
static_assert(Same(Code::kMismatch, TFC_MISMATCH));
static_assert(Same(Code::kDeadlineExceeded, TFC_DEADLINE_EXCEEDED));
static_assert(Same(Code::kPeerLost, TFC_PEER_LOST));
static_assert(Same(Code::kAborted, TFC_ABORTED));
static_assert(Same(Code::kCancelled, TFC_CANCELLED));
static_assert(Same(Code::kIo, TFC_IO));
static_assert(Same(Code::kDevice, TFC_DEVICE));
static_assert(Same(Code::kResourceExhausted, TFC_RESOURCE_EXHAUSTED));
static_assert(Same(Code::kUnimplemented, TFC_UNIMPLEMENTED));
static_assert(Same(Code::kProtocol, TFC_PROTOCOL));
static_assert(Same(Code::kInternal, TFC_INTERNAL));

static_assert(Same(Dtype::kFloat16, TFC_FLOAT16));
static_assert(Same(Dtype::kBfloat16, TFC_BFLOAT16));
static_assert(Same(Dtype::kFloat32, TFC_FLOAT32));
static_assert(Same(Dtype::kFloat64, TFC_FLOAT64));
static_assert(Same(Dtype::kInt8, TFC_INT8));
static_assert(Same(Dtype::kInt16, TFC_INT16));
static_assert(Same(Dtype::kInt32, TFC_INT32));
static_assert(Same(Dtype::kInt64, TFC_INT64));
static_assert(Same(Dtype::kUint8, TFC_UINT8));
static_assert(Same(Dtype::kUint16, TFC_UINT16));
static_assert(Same(Dtype::kUint32, TFC_UINT32));
static_assert(Same(Dtype::kUint64, TFC_UINT64));
static_assert(Same(Dtype::kBool, TFC_BOOL));

static_assert(Same(Op::kAverage, TFC_AVERAGE));
static_assert(Same(Op::kSum, TFC_SUM));
static_assert(Same(Op::kMin, TFC_MIN));
static_assert(Same(Op::kMax, TFC_MAX));
static_assert(Same(Op::kProduct, TFC_PRODUCT));

static_assert(Same(Collective::kAllReduce, TFC_ALLREDUCE));
static_assert(Same(Collective::kReduceScatter, TFC_REDUCESCATTER));
static_assert(Same(Collective::kAllGather, TFC_ALLGATHER));
static_assert(Same(Collective::kBroadcast, TFC_BROADCAST));
static_assert(Same(Collective::kAllToAll, TFC_ALLTOALL));
static_assert(Same(Collective::kBarrier, TFC_BARRIER));

static_assert(Same(LogLevel::kDebug, TFC_LOG_DEBUG));
static_assert(Same(LogLevel::kInfo, TFC_LOG_INFO));
static_assert(Same(LogLevel::kWarning, TFC_LOG_WARNING));
static_assert(Same(LogLevel::kError, TFC_LOG_ERROR));

}  // namespace
}  // namespace tfc
