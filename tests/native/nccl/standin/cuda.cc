#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "per_thread.h"
#include "standin.h"

using tfc::CUcontext;
using tfc::CUdevice;
using tfc::CUdeviceptr;
using tfc::CUevent;
using tfc::CUresult;
using tfc::CUstream;
using tfc::CUuuid;

namespace tfc {
struct CUctx_st {
  int ordinal = 0;
};
struct CUevent_st {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;  // how often it was given to a stream
  uint64_t reached = 0;   // the last of those that a stream has come to
};
struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false;
  bool ended = false;
};
}  // namespace tfc

namespace {

constexpr CUresult kInvalidValue = 1;

struct Memory {
  size_t bytes = 0;
  int ordinal = 0;
};

// Never destroyed: streams run until the process ends.
struct World {
  std::mutex mutex;
  std::map<std::string, long> from_environment;
  std::map<std::string, long> set;
  std::map<std::string, long> calls;
  std::map<uintptr_t, Memory> memory;
  std::map<int, size_t> used;
  std::vector<tfc::CUctx_st> contexts{16};
  std::map<int, CUstream> default_streams;  // one a GPU
  std::vector<CUevent> events;

  World() {
    for (size_t i = 0; i < contexts.size(); ++i) contexts[i].ordinal = static_cast<int>(i);
    const char* given = std::getenv("TFC_STANDIN");
    std::string text = given == nullptr ? "" : given;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      const std::string one = text.substr(begin, end - begin);
      const size_t equal = one.find('=');
      if (equal != std::string::npos) from_environment[one.substr(0, equal)] = std::atol(one.c_str() + equal + 1);
      begin = end + 1;
    }
  }
};

World& TheWorld() {
  static auto* world = new World();
  return *world;
}

using Contexts = std::vector<CUcontext>;

// The thread's stack of contexts.
Contexts& Current() { return OfThisThread<Contexts>(); }
int CurrentOrdinal() { return Current().empty() ? -1 : Current().back()->ordinal; }
int Devices() { return static_cast<int>(standin_get("devices", 4)); }

CUresult Result(const char* symbol) {
  standin_hangs(symbol);
  return standin_fails(symbol) ? static_cast<CUresult>(standin_get("fail_with", 700)) : tfc::kCudaSuccess;
}

void Work(CUstream stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  while (true) {
    stream->changed.wait(lock, [&] { return stream->ended || !stream->work.empty(); });
    if (stream->work.empty()) break;
    const auto next = std::move(stream->work.front());
    stream->work.pop_front();
    stream->busy = true;
    lock.unlock();
    next();
    lock.lock();
    stream->busy = false;
    stream->changed.notify_all();
  }
  lock.unlock();
  delete stream;
}

CUstream NewStream() {
  auto* stream = new tfc::CUstream_st();
  std::thread(Work, stream).detach();
  return stream;
}

CUstream DefaultStream(int ordinal) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  CUstream& stream = world.default_streams[ordinal];
  if (stream == nullptr) stream = NewStream();
  return stream;
}

// 0 and the handles of the legacy and the per-thread default stream are one stream of the current GPU.
CUstream Real(CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) > 2 ? stream : DefaultStream(std::max(0, CurrentOrdinal()));
}

void Give(CUstream given, std::function<void()> work) {
  CUstream stream = Real(given);
  std::lock_guard<std::mutex> lock(stream->mutex);
  stream->work.push_back(std::move(work));
  stream->changed.notify_all();
}

// Who takes the host for a GPU computes on the thread that calls.
bool IsHost(CUstream stream) { return stream == nullptr && standin_get("host_is_gpu", 0) != 0; }

}  // namespace

STANDIN_EXPORT long standin_get(const char* name, long otherwise) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  if (const auto found = world.set.find(name); found != world.set.end()) return found->second;
  const auto found = world.from_environment.find(name);
  return found == world.from_environment.end() ? otherwise : found->second;
}

STANDIN_EXPORT void standin_set(const char* name, long value) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.set[name] = value;
}

STANDIN_EXPORT void standin_reset() {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.set.clear();
  world.calls.clear();
}

STANDIN_EXPORT int standin_fails(const char* symbol) {
  const long fatal = standin_get((std::string("fail:") + symbol).c_str(), 0);
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  return ++world.calls[symbol] == fatal ? 1 : 0;
}

STANDIN_EXPORT void standin_hangs(const char* symbol) {
  const std::string name = std::string("hang:") + symbol;
  while (standin_get(name.c_str(), 0) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

STANDIN_EXPORT long standin_calls(const char* symbol) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  return world.calls[symbol];
}

STANDIN_EXPORT void standin_synchronize(CUstream given) {
  CUstream stream = Real(given);
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->changed.wait(lock, [&] { return stream->work.empty() && !stream->busy; });
}

STANDIN_EXPORT void standin_synchronize_memory(void* memory) {
  int ordinal = 0;
  {
    World& world = TheWorld();
    std::lock_guard<std::mutex> lock(world.mutex);
    const auto found = world.memory.find(reinterpret_cast<uintptr_t>(memory));
    if (found != world.memory.end()) ordinal = found->second.ordinal;
  }
  standin_synchronize(DefaultStream(ordinal));
}

STANDIN_EXPORT void* standin_allocate(int ordinal, size_t bytes) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  void* memory = std::malloc(std::max<size_t>(bytes, 1));
  world.memory[reinterpret_cast<uintptr_t>(memory)] = Memory{bytes, ordinal};
  world.used[ordinal] += bytes;
  return memory;
}

STANDIN_EXPORT void standin_free(void* memory) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto found = world.memory.find(reinterpret_cast<uintptr_t>(memory));
  if (found == world.memory.end()) return;
  world.used[found->second.ordinal] -= found->second.bytes;
  world.memory.erase(found);
  std::free(memory);
}

// ---- the driver ----

STANDIN_EXPORT CUresult cuInit(unsigned) { return Result("cuInit"); }

STANDIN_EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == tfc::kCudaOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_ILLEGAL_ADDRESS";
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == tfc::kCudaOutOfMemory ? "out of memory" : "an illegal memory access was encountered";
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = Devices();
  return Result("cuDeviceGetCount");
}

STANDIN_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < Devices() ? tfc::kCudaSuccess : 101;
}

STANDIN_EXPORT CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<size_t>(size), "Stand-in");
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 0, sizeof(uuid->bytes));
  uuid->bytes[0] = 0x5a;
  // Each process gets the number of its GPU, as with CUDA_VISIBLE_DEVICES.
  uuid->bytes[15] = static_cast<unsigned char>(standin_get("first_device", 0) + device);
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0",
                static_cast<unsigned>(standin_get("first_device", 0) + device));
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDeviceGetAttribute(int* value, int which, CUdevice) {
  *value = which == tfc::kCudaComputeMajor ? 9 : 0;
  if (which == tfc::kCudaMultiprocessors) *value = static_cast<int>(standin_get("multiprocessors", 132));
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = static_cast<size_t>(standin_get("memory", 1L << 30));
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  *can = static_cast<int>(standin_get("peers", 1));
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = &TheWorld().contexts[static_cast<size_t>(device)];
  return Result("cuDevicePrimaryCtxRetain");
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return tfc::kCudaSuccess; }

STANDIN_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  Current().push_back(context);
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  Contexts& current = Current();
  if (current.empty()) return 201;
  *context = current.back();
  current.pop_back();
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = -5;
  return CurrentOrdinal() < 0 ? 201 : tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int) {
  *stream = NewStream();
  return Result("cuStreamCreateWithPriority");
}

STANDIN_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  std::lock_guard<std::mutex> lock(stream->mutex);
  stream->ended = true;
  stream->changed.notify_all();
  return tfc::kCudaSuccess;
}

// Events live as long as what still waits for them: they are few, so they are kept.
STANDIN_EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = new tfc::CUevent_st();
  World& world = TheWorld();
  {
    std::lock_guard<std::mutex> lock(world.mutex);
    world.events.push_back(*event);
  }
  return CurrentOrdinal() < 0 ? 201 : Result("cuEventCreate");
}

STANDIN_EXPORT CUresult cuEventDestroy_v2(CUevent) { return tfc::kCudaSuccess; }

STANDIN_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  const CUresult result = Result("cuEventRecord");
  if (result != tfc::kCudaSuccess) return result;
  uint64_t mine = 0;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    mine = ++event->recorded;
  }
  const auto reach = [event, mine] {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->reached = std::max(event->reached, mine);
    event->changed.notify_all();
  };
  IsHost(stream) ? reach() : Give(stream, reach);
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  uint64_t wanted = 0;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    wanted = event->recorded;
  }
  const auto wait = [event, wanted] {
    std::unique_lock<std::mutex> lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= wanted; });
  };
  IsHost(stream) ? wait() : Give(stream, wait);
  return Result("cuStreamWaitEvent");
}

STANDIN_EXPORT CUresult cuEventQuery(CUevent event) {
  const CUresult result = Result("cuEventQuery");
  if (result != tfc::kCudaSuccess) return result;
  std::lock_guard<std::mutex> lock(event->mutex);
  return event->reached >= event->recorded ? tfc::kCudaSuccess : tfc::kCudaNotReady;
}

STANDIN_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes) {
  const int ordinal = CurrentOrdinal();
  if (ordinal < 0) return 201;
  const auto limit = static_cast<size_t>(standin_get("memory", 1L << 30));
  {
    World& world = TheWorld();
    std::lock_guard<std::mutex> lock(world.mutex);
    if (world.used[ordinal] + bytes > limit) return tfc::kCudaOutOfMemory;
  }
  *memory = reinterpret_cast<uintptr_t>(standin_allocate(ordinal, bytes));
  return Result("cuMemAlloc_v2");
}

STANDIN_EXPORT CUresult cuMemFree_v2(CUdeviceptr memory) {
  standin_free(reinterpret_cast<void*>(static_cast<uintptr_t>(memory)));
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Give(stream, [=] {
    std::memmove(reinterpret_cast<void*>(static_cast<uintptr_t>(to)),
                 reinterpret_cast<const void*>(static_cast<uintptr_t>(from)), bytes);
  });
  return Result("cuMemcpyDtoDAsync_v2");
}

STANDIN_EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  const CUresult result = Result("cuMemHostAlloc");
  if (result == tfc::kCudaSuccess) *memory = std::malloc(std::max<size_t>(bytes, 1));
  return result;
}

STANDIN_EXPORT CUresult cuMemFreeHost(void* memory) {
  std::free(memory);
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Give(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(static_cast<uintptr_t>(from)), bytes); });
  return Result("cuMemcpyDtoHAsync_v2");
}

STANDIN_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  Give(stream, [=] { std::memcpy(reinterpret_cast<void*>(static_cast<uintptr_t>(to)), from, bytes); });
  return Result("cuMemcpyHtoDAsync_v2");
}

STANDIN_EXPORT CUresult cuPointerGetAttributes(unsigned count, int* which, void** values, CUdeviceptr pointer) {
  const bool host_is_gpu = standin_get("host_is_gpu", 0) != 0;
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto address = static_cast<uintptr_t>(pointer);
  auto found = world.memory.upper_bound(address);
  const bool known =
      found != world.memory.begin() && (--found, address < found->first + std::max<size_t>(found->second.bytes, 1));
  for (unsigned i = 0; i < count; ++i) {
    if (which[i] == tfc::kCudaPointerMemoryType) {
      *static_cast<unsigned*>(values[i]) = known || host_is_gpu ? tfc::kCudaMemoryTypeDevice : 0;
    } else if (which[i] == tfc::kCudaPointerDeviceOrdinal) {
      *static_cast<int*>(values[i]) = known ? found->second.ordinal : host_is_gpu ? 0 : -2;
    } else {
      return kInvalidValue;
    }
  }
  return tfc::kCudaSuccess;
}

STANDIN_EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void*), void* user) {
  Give(stream, [=] { function(user); });
  return tfc::kCudaSuccess;
}
