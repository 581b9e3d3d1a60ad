// The part of NCCL that is used: types and prototypes as of NCCL 2.18, which later versions keep.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_NCCL_API_H_
#define TFCOLLECTIVE_DEVICE_NCCL_NCCL_API_H_

#include <cstddef>
#include <string>

#include "device/nccl/cuda_api.h"

namespace tfc {

using ncclComm_t = struct ncclComm*;
using ncclResult_t = int;
using ncclDataType_t = int;
using ncclRedOp_t = int;
struct ncclUniqueId {
  char internal[128];
};

inline constexpr ncclResult_t kNcclSuccess = 0;
inline constexpr ncclResult_t kNcclRemoteError = 6;
inline constexpr ncclResult_t kNcclInProgress = 7;

inline constexpr ncclDataType_t kNcclInt8 = 0;
inline constexpr ncclDataType_t kNcclUint8 = 1;
inline constexpr ncclDataType_t kNcclInt32 = 2;
inline constexpr ncclDataType_t kNcclUint32 = 3;
inline constexpr ncclDataType_t kNcclInt64 = 4;
inline constexpr ncclDataType_t kNcclUint64 = 5;
inline constexpr ncclDataType_t kNcclFloat16 = 6;
inline constexpr ncclDataType_t kNcclFloat32 = 7;
inline constexpr ncclDataType_t kNcclFloat64 = 8;
inline constexpr ncclDataType_t kNcclBfloat16 = 9;

inline constexpr ncclRedOp_t kNcclSum = 0;
inline constexpr ncclRedOp_t kNcclProd = 1;
inline constexpr ncclRedOp_t kNcclMax = 2;
inline constexpr ncclRedOp_t kNcclMin = 3;
inline constexpr ncclRedOp_t kNcclAvg = 4;

inline constexpr int kNcclScalarHostImmediate = 1;
inline constexpr int kNcclConfigUndefined = static_cast<int>(0x80000000u);
inline constexpr int kOldestNccl = 21800;

// NCCL takes what `size` covers and gives the fields that a newer version has their defaults.
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestNccl;
  int blocking = 0;
  int cga_cluster_size = kNcclConfigUndefined;
  int min_ctas = kNcclConfigUndefined;
  int max_ctas = kNcclConfigUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclConfigUndefined;
};

#define TFC_NCCL_FUNCTIONS(F)                                                                                         \
  F(ncclGetVersion, ncclResult_t, (int* version))                                                                     \
  F(ncclGetUniqueId, ncclResult_t, (ncclUniqueId * id))                                                               \
  F(ncclGetErrorString, const char*, (ncclResult_t result))                                                           \
  F(ncclGetLastError, const char*, (ncclComm_t comm))                                                                 \
  F(ncclCommInitRankConfig, ncclResult_t,                                                                             \
    (ncclComm_t * comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config))                                   \
  F(ncclCommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * error))                                     \
  F(ncclCommFinalize, ncclResult_t, (ncclComm_t comm))                                                                \
  F(ncclCommDestroy, ncclResult_t, (ncclComm_t comm))                                                                 \
  F(ncclCommAbort, ncclResult_t, (ncclComm_t comm))                                                                   \
  F(ncclRedOpCreatePreMulSum, ncclResult_t,                                                                           \
    (ncclRedOp_t * op, void* scalar, ncclDataType_t type, int residence, ncclComm_t comm))                            \
  F(ncclRedOpDestroy, ncclResult_t, (ncclRedOp_t op, ncclComm_t comm))                                                \
  F(ncclGroupStart, ncclResult_t, ())                                                                                 \
  F(ncclGroupEnd, ncclResult_t, ())                                                                                   \
  F(ncclAllReduce, ncclResult_t,                                                                                      \
    (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,             \
     CUstream stream))                                                                                                \
  F(ncclReduce, ncclResult_t,                                                                                         \
    (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,   \
     CUstream stream))                                                                                                \
  F(ncclReduceScatter, ncclResult_t,                                                                                  \
    (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,             \
     CUstream stream))                                                                                                \
  F(ncclAllGather, ncclResult_t,                                                                                      \
    (const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm, CUstream stream))           \
  F(ncclBroadcast, ncclResult_t,                                                                                      \
    (const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, CUstream stream)) \
  F(ncclSend, ncclResult_t,                                                                                           \
    (const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream))                \
  F(ncclRecv, ncclResult_t,                                                                                           \
    (void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream))

struct NcclApi {
#define TFC_DECLARE(symbol, result, arguments) result(*symbol) arguments = nullptr;
  TFC_NCCL_FUNCTIONS(TFC_DECLARE)
#undef TFC_DECLARE

  std::string path;
  int version = 0;  // 22703 for 2.27.3
};

// "2.27.3".
std::string NcclVersionText(int version);

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_NCCL_API_H_
