// A world whose ranks are threads with a stand-in GPU each.
#ifndef TFCOLLECTIVE_TESTS_NATIVE_NCCL_GPU_WORLD_H_
#define TFCOLLECTIVE_TESTS_NATIVE_NCCL_GPU_WORLD_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "standin.h"
#include "testing/world.h"

namespace tfc::testing {

inline const std::string kCudaStandin = std::string(TFC_STANDINS) + "/libcuda_standin.so";
inline const std::string kNcclStandin = std::string(TFC_STANDINS) + "/libnccl_standin.so";

inline tfc_device_options StandinOptions() {
  tfc_device_options options{};
  options.struct_size = sizeof(options);
  options.cuda_library = kCudaStandin.c_str();
  options.nccl_library = kNcclStandin.c_str();
  return options;
}

// Device memory that holds `count` elements. It is kept: after a failure the GPU may still be writing to it.
template <typename T>
class OnGpu {
 public:
  OnGpu(int ordinal, size_t count)
      : data_(static_cast<T*>(standin_allocate(ordinal, count * sizeof(T)))), size_(count) {}
  OnGpu(int ordinal, const std::vector<T>& values) : OnGpu(ordinal, values.size()) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  T* data() const { return data_; }
  // What the GPU holds when `stream` is done.
  std::vector<T> Get(CUstream stream = nullptr) const {
    if (stream != nullptr) standin_synchronize(stream);
    standin_synchronize_memory(data_);
    return std::vector<T>(data_, data_ + size_);
  }

 private:
  T* data_;
  size_t size_;
};

struct GpuRank {
  int rank;
  int size;
  tfc_communicator* communicator;
  CUstream stream = nullptr;  // the caller's
  int device = -1;
  bool through_host = false;  // calls by name, where there is no NCCL

  CallResult Run(const tfc_request& request, uint64_t* ticket = nullptr) const {
    tfc_device_call call{};
    call.struct_size = sizeof(call);
    call.device = device;
    call.stream = stream;
    tfc_error error{};
    error.struct_size = sizeof(error);
    const int code = tfc_device_run(communicator, &request, &call, ticket, &error);
    return code == TFC_OK ? CallResult{} : CallResult{code, error.peer, error.message};
  }
  CallResult Wait(uint64_t ticket, double timeout_s = 20) const {
    tfc_error error{};
    error.struct_size = sizeof(error);
    const int code = tfc_device_wait(communicator, ticket, timeout_s, &error);
    return code == TFC_OK ? CallResult{} : CallResult{code, error.peer, error.message};
  }
  // All ranks have come here, and back from what they called before. What a faster rank does next may end it.
  void Barrier() const { (void)RunNow(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM)); }
  template <typename T>
  CallResult AllReduce(const OnGpu<T>& buffer, size_t count, int32_t dtype, int32_t op = TFC_SUM,
                       uint64_t* ticket = nullptr) const {
    tfc_request request = MakeRequest(TFC_ALLREDUCE, dtype, op, "x");
    const tfc_span span{buffer.data(), buffer.data(), static_cast<int64_t>(count)};
    request.spans = &span;
    request.num_spans = 1;
    return Run(request, ticket);
  }
};

// What the callbacks of calls by name have received.
struct Launched {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
  std::vector<int> codes;

  static void Note(void* user, const tfc_error* error) {
    auto* self = static_cast<Launched*>(user);
    std::lock_guard<std::mutex> lock(self->mutex);
    self->codes.push_back(error == nullptr ? TFC_OK : error->code);
    ++self->count;
    self->changed.notify_all();
  }
  void WaitFor(int wanted) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return count >= wanted; });
  }
};

// Sums by name; the ticket. Where another rank may have ended the communicator before, `code` gets what came of it.
inline uint64_t SubmitByName(const GpuRank& self, const char* name, const OnGpu<float>& buffer, int64_t count,
                             Launched* launched, int* code = nullptr) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, name);
  const tfc_span span{buffer.data(), buffer.data(), count};
  request.spans = &span;
  request.num_spans = 1;
  tfc_device_call call{};
  call.struct_size = sizeof(call);
  call.device = -1;
  call.by_name = 1;
  call.stream = self.stream;
  call.launched = Launched::Note;
  call.user = launched;
  call.through_host = self.through_host ? 1 : 0;
  uint64_t ticket = 0;
  tfc_error error{};
  error.struct_size = sizeof(error);
  const int submitted = tfc_device_run(self.communicator, &request, &call, &ticket, &error);
  if (code != nullptr) {
    *code = submitted;
  } else {
    EXPECT_EQ(submitted, TFC_OK) << error.message;
  }
  return ticket;
}

class GpuTest : public ::testing::Test {
 protected:
  GpuTest() { standin_reset(); }
  ~GpuTest() override { standin_reset(); }

  // Every rank has a GPU and a stream of its own.
  static void RunGpuWorld(int size, const std::function<void(GpuRank&)>& body, WorldOptions options = WorldOptions()) {
    options.size = size;
    RunWorld(options, [&](int rank, tfc_communicator* communicator) {
      const tfc_device_options devices = StandinOptions();
      ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
      GpuRank self{rank, size, communicator};
      cuStreamCreateWithPriority(&self.stream, 0, 0);
      body(self);
    });
  }
};

}  // namespace tfc::testing

#endif  // TFCOLLECTIVE_TESTS_NATIVE_NCCL_GPU_WORLD_H_
