// Where a rank has no NCCL: operations by name through the host's memory.
#include "device/nccl/host_staging.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "device/nccl/device_task.h"
#include "device/nccl/libraries.h"
#include "gpu_world.h"
#include "testing/log_recorder.h"
#include "testing/tcp_world.h"

namespace tfc::testing {
namespace {

class GpuHostStagingTest : public GpuTest {
 protected:
  // Every rank has a GPU; the one that is named has no NCCL.
  static void RunHostStagingWorld(int size, int without, const std::function<void(GpuRank&)>& body,
                                  WorldOptions options = WorldOptions()) {
    options.size = size;
    RunWorld(options, [&](int rank, tfc_communicator* communicator) {
      tfc_device_options devices = StandinOptions();
      if (rank == without) devices.nccl_library = "/nowhere/libnccl.so.2";
      ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
      GpuRank self{rank, size, communicator};
      self.through_host = true;
      cuStreamCreateWithPriority(&self.stream, 0, 0);
      body(self);
    });
  }
};

TEST_F(GpuHostStagingTest, ReducesInTheOrderOfTheCallersStream) {
  for (int without = 0; without < 3; ++without) {
    RunHostStagingWorld(3, without, [](GpuRank& self) {
      OnGpu<float> a(self.rank, std::vector<float>(40, 0.0f));
      OnGpu<float> b(self.rank, std::vector<float>(7, 2.0f));
      OnGpu<float> copy(self.rank, 40);
      for (int step = 1; step <= 3; ++step) {
        OnGpu<float> fresh(self.rank, std::vector<float>(40, static_cast<float>(step)));
        cuMemcpyDtoDAsync_v2(reinterpret_cast<uintptr_t>(a.data()), reinterpret_cast<uintptr_t>(fresh.data()), 160,
                             self.stream);
        Launched launched;
        const uint64_t first = SubmitByName(self, "a", a, 40, &launched);
        const uint64_t second = SubmitByName(self, "b", b, 7, &launched);
        launched.WaitFor(2);
        ASSERT_EQ(launched.codes, (std::vector<int>{TFC_OK, TFC_OK}));
        ASSERT_EQ(tfc_device_join(self.communicator, first, self.stream, nullptr), TFC_OK);
        cuMemcpyDtoDAsync_v2(reinterpret_cast<uintptr_t>(copy.data()), reinterpret_cast<uintptr_t>(a.data()), 160,
                             self.stream);
        EXPECT_EQ(copy.Get(self.stream), std::vector<float>(40, 3.0f * static_cast<float>(step)));
        EXPECT_EQ(self.Wait(second).code, TFC_OK);
        EXPECT_EQ(tfc_device_join(self.communicator, second, self.stream, nullptr), TFC_OK);  // complete: nothing to do
      }
      EXPECT_EQ(b.Get(), std::vector<float>(7, 54.0f));
    });
  }
}

TEST_F(GpuHostStagingTest, TakesWhatNcclWouldTakeByName) {
  RunHostStagingWorld(2, 1, [](GpuRank& self) {
    OnGpu<int64_t> rows(self.rank, std::vector<int64_t>{1, 2, 3, 4, 5, 6});
    OnGpu<int64_t> mine(self.rank, std::vector<int64_t>(4, -1));
    const int64_t shape[] = {3, 2};
    tfc_request request = MakeRequest(TFC_REDUCESCATTER, TFC_INT64, TFC_SUM, "rows");
    const tfc_span span{rows.data(), mine.data(), 6};
    request.spans = &span;
    request.num_spans = 1;
    request.shape = shape;
    request.ndim = 2;
    tfc_device_call call{};
    call.struct_size = sizeof(call);
    call.device = -1;
    call.by_name = 1;
    call.through_host = 1;
    call.stream = self.stream;
    call.launched = Launched::Note;
    Launched launched;
    call.user = &launched;
    uint64_t ticket = 0;
    ASSERT_EQ(tfc_device_run(self.communicator, &request, &call, &ticket, nullptr), TFC_OK);
    launched.WaitFor(1);
    ASSERT_EQ(launched.codes[0], TFC_OK);
    ASSERT_EQ(tfc_device_join(self.communicator, ticket, self.stream, nullptr), TFC_OK);
    const std::vector<int64_t> expected =
        self.rank == 0 ? std::vector<int64_t>{2, 4, 6, 8} : std::vector<int64_t>{10, 12, -1, -1};
    EXPECT_EQ(mine.Get(self.stream), expected);
  });
}

TEST_F(GpuHostStagingTest, SaysOnceThatItIsSlowAndWhy) {
  LogRecorder recorder;
  const Log log = recorder.log();
  WorldOptions options;
  options.log = [](void* user, int32_t, const char* message) { static_cast<const Log*>(user)->Warning(message); };
  options.log_user = const_cast<Log*>(&log);
  RunHostStagingWorld(
      2, 1,
      [](GpuRank& self) {
        OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
        Launched launched;
        for (int again = 1; again <= 3; ++again) {
          SubmitByName(self, "a", buffer, 8, &launched);
          launched.WaitFor(again);
        }
        EXPECT_EQ(launched.codes, std::vector<int>(3, TFC_OK));
        self.Barrier();
      },
      options);
  const std::vector<std::string> lines = recorder.lines();
  const auto slow = [](const std::string& line) {
    return line.find("travel through the host's memory") != std::string::npos &&
           line.find("rank 1 cannot use GPUs") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), slow), 2);  // each rank once
}

TEST_F(GpuHostStagingTest, AMismatchLeavesTheCommunicatorAlive) {
  RunHostStagingWorld(2, 0, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
    Launched launched;
    SubmitByName(self, "a", buffer, 4 + self.rank, &launched);
    launched.WaitFor(1);
    EXPECT_EQ(launched.codes[0], TFC_MISMATCH);
    const uint64_t ticket = SubmitByName(self, "a", buffer, 8, &launched);
    launched.WaitFor(2);
    EXPECT_EQ(launched.codes[1], TFC_OK);
    EXPECT_EQ(self.Wait(ticket).code, TFC_OK);
    EXPECT_EQ(buffer.Get(), std::vector<float>(8, 2.0f));
  });
}

TEST_F(GpuHostStagingTest, AnErrorOfTheGpuReachesEveryRank) {
  for (const char* symbol : {"cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}) {
    standin_reset();
    standin_set((std::string("fail:") + symbol).c_str(), 1);  // of all calls in the process: one rank's
    RunHostStagingWorld(2, 0, [&](GpuRank& self) {
      OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
      Launched launched;
      CallResult result{TFC_OK, -1, "of the submission or in the callback"};
      SubmitByName(self, "a", buffer, 8, &launched, &result.code);
      if (result.code == TFC_OK) {
        launched.WaitFor(1);
        result.code = launched.codes[0];
      }
      // The rank whose copy came through before the other one's failed finds out in what it does next.
      if (result.code == TFC_OK) result = RunNow(self.communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM));
      EXPECT_EQ(result.code, TFC_DEVICE) << symbol << ": " << result.message;
    });
  }
}

TEST_F(GpuHostStagingTest, AnAbortEndsWhatIsOnItsWayToTheHost) {
  RunHostStagingWorld(2, 1, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
    std::atomic<bool> release{false};
    cuLaunchHostFunc(
        self.stream,
        [](void* user) {
          while (!static_cast<std::atomic<bool>*>(user)->load())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        &release);
    Launched launched;
    int code = TFC_OK;
    SubmitByName(self, "a", buffer, 8, &launched, &code);
    if (self.rank == 0) tfc_communicator_abort(self.communicator, "enough");
    if (code == TFC_OK) {
      launched.WaitFor(1);
      code = launched.codes[0];
    }
    EXPECT_EQ(code, self.rank == 0 ? TFC_CANCELLED : TFC_ABORTED);
    release = true;
    standin_synchronize(self.stream);
  });
}

// A call may be on its way here while a shutdown ends the thread that would look after it.
TEST_F(GpuHostStagingTest, WhatComesAfterTheEndIsNotLeftWaiting) {
  EngineOptions alone;
  alone.topology = MakeTopology(0, {"node"});
  Engine engine(alone);
  HostStagingBackend staging(&engine, Log(), [] {});
  DeviceOptions devices;
  devices.cuda_library = kCudaStandin;
  const auto gpu = TakeOrDie(Gpu::Open(TakeOrDie(LoadCuda(devices)), 0));
  const Gpu::Current current(*gpu);
  const auto task = std::make_shared<DeviceCommunicator::Task>(gpu);
  for (CUevent* event : {&task->before, &task->after}) *event = TakeOrDie(gpu->TakeEvent());
  std::vector<Code> ends;
  task->launched = [&ends](const Status& status) { ends.push_back(status.code()); };
  staging.Abort(Status(Code::kCancelled, "the communicator was shut down on this rank"));
  staging.Start(task, Status(Code::kUnimplemented, "there is no NCCL"));
  EXPECT_EQ(ends, std::vector<Code>{Code::kCancelled});
  EXPECT_TRUE(staging.empty());
}

TEST_F(GpuHostStagingTest, IsAskedForOrAnError) {
  RunHostStagingWorld(2, 1, [](GpuRank& self) {
    self.through_host = false;
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "a");
    const tfc_span span{buffer.data(), buffer.data(), 4};
    request.spans = &span;
    request.num_spans = 1;
    tfc_device_call call{};
    call.struct_size = sizeof(call);
    call.device = -1;
    call.by_name = 1;
    call.launched = Launched::Note;
    Launched launched;
    call.user = &launched;
    const int code = tfc_device_run(self.communicator, &request, &call, nullptr, nullptr);
    if (code == TFC_OK) launched.WaitFor(1);
    EXPECT_EQ(code == TFC_OK ? launched.codes[0] : code, TFC_UNIMPLEMENTED);
    self.Barrier();
  });
}

}  // namespace
}  // namespace tfc::testing
