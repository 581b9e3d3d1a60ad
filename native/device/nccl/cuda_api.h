// The part of the CUDA driver API that is used: types and prototypes, so that nothing of CUDA is needed to build.
// The driver's API and not the runtime's: it comes with the driver and has no version to agree on; a CUstream is a
// cudaStream_t.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_CUDA_API_H_
#define TFCOLLECTIVE_DEVICE_NCCL_CUDA_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tfc {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;  // NOLINT: the driver's type
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
struct CUuuid {
  unsigned char bytes[16];
};

inline constexpr CUresult kCudaSuccess = 0;
inline constexpr CUresult kCudaOutOfMemory = 2;
inline constexpr CUresult kCudaNotReady = 600;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr int kCudaPointerMemoryType = 2;
inline constexpr int kCudaPointerDeviceOrdinal = 9;
inline constexpr unsigned kCudaMemoryTypeDevice = 2;
inline constexpr int kCudaMultiprocessors = 16;
inline constexpr int kCudaComputeMajor = 75;
inline constexpr int kCudaComputeMinor = 76;

// For a function with several versions: the one that current drivers give to new programs.
#define TFC_CUDA_FUNCTIONS(F)                                                                                     \
  F(cuInit, "cuInit", (unsigned flags))                                                                           \
  F(cuDriverGetVersion, "cuDriverGetVersion", (int* version))                                                     \
  F(cuGetErrorName, "cuGetErrorName", (CUresult error, const char** text))                                        \
  F(cuGetErrorString, "cuGetErrorString", (CUresult error, const char** text))                                    \
  F(cuDeviceGetCount, "cuDeviceGetCount", (int* count))                                                           \
  F(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                                 \
  F(cuDeviceGetName, "cuDeviceGetName", (char* name, int size, CUdevice device))                                  \
  F(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (CUuuid * uuid, CUdevice device))                                      \
  F(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char* id, int size, CUdevice device))                            \
  F(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int* value, int which, CUdevice d))                            \
  F(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t* bytes, CUdevice device))                                    \
  F(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int* can, CUdevice a, CUdevice b))                           \
  F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * c, CUdevice d))                            \
  F(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                 \
  F(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                                 \
  F(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                                 \
  F(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int* least, int* most))                          \
  F(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream * stream, unsigned flags, int priority))  \
  F(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                     \
  F(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream s, CUevent event, unsigned flags))                          \
  F(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                            \
  F(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                                         \
  F(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                             \
  F(cuEventQuery, "cuEventQuery", (CUevent event))                                                                \
  F(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * memory, size_t bytes))                                            \
  F(cuMemFree, "cuMemFree_v2", (CUdeviceptr memory))                                                              \
  F(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
  F(cuMemHostAlloc, "cuMemHostAlloc", (void** memory, size_t bytes, unsigned flags))                              \
  F(cuMemFreeHost, "cuMemFreeHost", (void* memory))                                                               \
  F(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void* to, CUdeviceptr from, size_t bytes, CUstream stream))       \
  F(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void* from, size_t bytes, CUstream stream)) \
  F(cuPointerGetAttributes, "cuPointerGetAttributes", (unsigned count, int* which, void** values, CUdeviceptr pointer))

struct CudaApi {
#define TFC_DECLARE(member, symbol, arguments) CUresult(*member) arguments = nullptr;
  TFC_CUDA_FUNCTIONS(TFC_DECLARE)
#undef TFC_DECLARE

  std::string path;  // of the library
  int version = 0;   // 13000 for CUDA 13.0
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_CUDA_API_H_
