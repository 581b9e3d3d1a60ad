#include "device/nccl/gpu.h"

#include <utility>

namespace tfc {
namespace {

std::string UuidText(const CUuuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid.bytes[i] >> 4];
    text += kDigits[uuid.bytes[i] & 15];
  }
  return text;
}

}  // namespace

Status CudaStatus(const CudaApi& api, CUresult result, const std::string& what) {
  if (result == kCudaSuccess) return Status::Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  std::string message = what + ": CUDA error " + std::to_string(result);
  if (api.cuGetErrorName(result, &name) == kCudaSuccess && name != nullptr) message = what + ": " + name;
  if (api.cuGetErrorString(result, &text) == kCudaSuccess && text != nullptr) message += " (" + std::string(text) + ")";
  return Status(result == kCudaOutOfMemory ? Code::kResourceExhausted : Code::kDevice, message);
}

Result<int> CountGpus(const CudaApi& api) {
  int count = 0;
  TFC_RETURN_IF_ERROR(CudaStatus(api, api.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  return count;
}

Result<GpuInfo> DescribeGpu(const CudaApi& api, int ordinal) {
  const auto count = CountGpus(api);
  if (!count.ok()) return count.status();
  if (ordinal < 0 || ordinal >= count.value())
    return Status(Code::kInvalidArgument, "there is no GPU " + std::to_string(ordinal) + ": this process sees " +
                                              std::to_string(count.value()) + " (CUDA_VISIBLE_DEVICES)");
  CUdevice device = 0;
  TFC_RETURN_IF_ERROR(CudaStatus(api, api.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  GpuInfo info;
  info.ordinal = ordinal;
  char text[256] = "";
  if (api.cuDeviceGetName(text, sizeof(text), device) == kCudaSuccess) info.name = text;
  if (api.cuDeviceGetPCIBusId(text, sizeof(text), device) == kCudaSuccess) info.bus_id = text;
  CUuuid uuid{};
  TFC_RETURN_IF_ERROR(CudaStatus(api, api.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  info.uuid = UuidText(uuid);
  // For people only: what the driver does not tell is shown as 0.
  api.cuDeviceTotalMem(&info.memory, device);
  api.cuDeviceGetAttribute(&info.major, kCudaComputeMajor, device);
  api.cuDeviceGetAttribute(&info.minor, kCudaComputeMinor, device);
  api.cuDeviceGetAttribute(&info.multiprocessors, kCudaMultiprocessors, device);
  return info;
}

Result<int> GpuOfPointer(const CudaApi& api, const void* pointer) {
  unsigned type = 0;
  int ordinal = -1;
  int which[2] = {kCudaPointerMemoryType, kCudaPointerDeviceOrdinal};
  void* values[2] = {&type, &ordinal};
  const CUresult result =
      api.cuPointerGetAttributes(2, which, values, static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(pointer)));
  if (result != kCudaSuccess) return CudaStatus(api, result, "cuPointerGetAttributes");
  if (type != kCudaMemoryTypeDevice || ordinal < 0)
    return Status(Code::kInvalidArgument, "it is memory of the host, not of a GPU");
  return ordinal;
}

Result<std::shared_ptr<Gpu>> Gpu::Open(std::shared_ptr<const CudaApi> api, int ordinal) {
  auto info = DescribeGpu(*api, ordinal);
  if (!info.ok()) return info.status();
  CUdevice device = 0;
  CUcontext context = nullptr;
  TFC_RETURN_IF_ERROR(CudaStatus(*api, api->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  TFC_RETURN_IF_ERROR(CudaStatus(*api, api->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"));
  return std::shared_ptr<Gpu>(new Gpu(std::move(api), info.Take(), device, context));
}

Gpu::~Gpu() {
  {
    const Current current(*this);
    for (CUevent event : events_) api_->cuEventDestroy(event);
  }
  api_->cuDevicePrimaryCtxRelease(device_);
}

std::string Gpu::Title() const {
  return "GPU " + std::to_string(info_.ordinal) + " (" + info_.name + ", " + info_.bus_id + ")";
}

Status Gpu::Check(CUresult result, const std::string& what) const {
  return result == kCudaSuccess ? Status::Ok() : CudaStatus(*api_, result, what).WithContext(Title());
}

Result<CUstream> Gpu::CreateUrgentStream() const {
  int least = 0;
  int most = 0;
  TFC_RETURN_IF_ERROR(Check(api_->cuCtxGetStreamPriorityRange(&least, &most), "cuCtxGetStreamPriorityRange"));
  CUstream stream = nullptr;
  TFC_RETURN_IF_ERROR(
      Check(api_->cuStreamCreateWithPriority(&stream, kCudaStreamNonBlocking, most), "cuStreamCreateWithPriority"));
  return stream;
}

Result<CUevent> Gpu::TakeEvent() {
  {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      CUevent event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  TFC_RETURN_IF_ERROR(Check(api_->cuEventCreate(&event, kCudaEventDisableTiming), "cuEventCreate"));
  const MutexLock lock(mutex_);
  events_.push_back(event);
  return event;
}

void Gpu::GiveBack(CUevent event) {
  const MutexLock lock(mutex_);
  free_.push_back(event);
}

Result<CUdeviceptr> Gpu::Allocate(size_t bytes) const {
  CUdeviceptr memory = 0;
  TFC_RETURN_IF_ERROR(Check(api_->cuMemAlloc(&memory, bytes), "cuMemAlloc of " + std::to_string(bytes) + " bytes"));
  return memory;
}

void Gpu::Free(CUdeviceptr memory) const { api_->cuMemFree(memory); }

}  // namespace tfc
