// One GPU as this process uses it: its context, its streams and events, and errors that name it.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_GPU_H_
#define TFCOLLECTIVE_DEVICE_NCCL_GPU_H_

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "device/nccl/cuda_api.h"

namespace tfc {

// The description of a GPU for messages and for peers.
struct GpuInfo {
  int ordinal = 0;
  std::string name;
  std::string bus_id;
  std::string uuid;  // of a part of a GPU (MIG): that part's own
  size_t memory = 0;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;   // 0: unknown
};

// DEVICE with CUDA's own words: "<what>: CUDA_ERROR_... (...)"; RESOURCE_EXHAUSTED where memory is out.
Status CudaStatus(const CudaApi& api, CUresult result, const std::string& what);
Result<int> CountGpus(const CudaApi& api);
Result<GpuInfo> DescribeGpu(const CudaApi& api, int ordinal);
// The ordinal of the GPU whose memory this is. INVALID_ARGUMENT for memory of the host.
Result<int> GpuOfPointer(const CudaApi& api, const void* pointer);

class Gpu {
 public:
  // Keeps the primary context, the one that all libraries of a process share.
  static Result<std::shared_ptr<Gpu>> Open(std::shared_ptr<const CudaApi> api, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Makes the GPU the calling thread's own for a while.
  class Current {
   public:
    explicit Current(const Gpu& gpu) : gpu_(gpu), pushed_(gpu.api().cuCtxPushCurrent(gpu.context_) == kCudaSuccess) {}
    ~Current() {
      CUcontext popped = nullptr;
      if (pushed_) gpu_.api().cuCtxPopCurrent(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Gpu& gpu_;
    const bool pushed_;
  };

  const CudaApi& api() const { return *api_; }
  const GpuInfo& info() const { return info_; }
  // "GPU 0 (NVIDIA H200, 0000:1b:00.0)".
  std::string Title() const;
  // Ok, or what went wrong on this GPU.
  Status Check(CUresult result, const std::string& what) const;

  // The rest with the GPU current.

  // Goes before other work of the GPU: a late collective keeps the other ranks waiting.
  Result<CUstream> CreateUrgentStream() const;
  // Events are made once and used again.
  Result<CUevent> TakeEvent();
  void GiveBack(CUevent event);
  Result<CUdeviceptr> Allocate(size_t bytes) const;
  void Free(CUdeviceptr memory) const;

 private:
  Gpu(std::shared_ptr<const CudaApi> api, GpuInfo info, CUdevice device, CUcontext context)
      : api_(std::move(api)), info_(std::move(info)), device_(device), context_(context) {}

  const std::shared_ptr<const CudaApi> api_;
  const GpuInfo info_;
  const CUdevice device_;
  const CUcontext context_;
  Mutex mutex_;
  std::vector<CUevent> events_ TFC_GUARDED_BY(mutex_);  // all that were made
  std::vector<CUevent> free_ TFC_GUARDED_BY(mutex_);
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_GPU_H_
