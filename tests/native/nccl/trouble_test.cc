// Order, waiting, and what goes wrong on GPUs.
#include <atomic>
#include <chrono>
#include <thread>

#include "gpu_world.h"

namespace tfc::testing {
namespace {

class GpuTroubleTest : public GpuTest {};

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct SlowFill {
  float* data;
  size_t count;
  float value;
};

void Fill(void* user) {
  const auto* fill = static_cast<SlowFill*>(user);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a kernel of the caller's that takes its time
  for (size_t i = 0; i < fill->count; ++i) fill->data[i] = fill->value;
}

TEST_F(GpuTroubleTest, FollowsTheOrderOfTheCallersStream) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(10, -1.0f));
    OnGpu<float> copy(self.rank, 10);
    SlowFill fill{buffer.data(), 10, 1.0f + static_cast<float>(self.rank)};
    cuLaunchHostFunc(self.stream, Fill, &fill);
    ASSERT_EQ(self.AllReduce(buffer, 10, TFC_FLOAT32).code, TFC_OK);
    // After the operation on the same stream, and before what comes then.
    cuMemcpyDtoDAsync_v2(reinterpret_cast<uintptr_t>(copy.data()), reinterpret_cast<uintptr_t>(buffer.data()), 40,
                         self.stream);
    SlowFill spoil{buffer.data(), 10, -7.0f};
    cuLaunchHostFunc(self.stream, Fill, &spoil);
    EXPECT_EQ(copy.Get(self.stream), std::vector<float>(10, 3.0f));
  });
}

TEST_F(GpuTroubleTest, TheHostDoesNotWaitForTheGpu) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    ASSERT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32).code, TFC_OK);
    // Held by the caller's own work, the operation cannot be complete: the call comes back before it is.
    std::atomic<bool> release{false};
    cuLaunchHostFunc(
        self.stream,
        [](void* user) {
          while (!static_cast<std::atomic<bool>*>(user)->load())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        &release);
    uint64_t ticket = 0;
    const CallResult called = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    EXPECT_EQ(called.code, TFC_OK) << called.message;
    EXPECT_EQ(self.Wait(ticket, 0.05).code, TFC_DEADLINE_EXCEEDED);
    release = true;
    EXPECT_EQ(self.Wait(ticket).code, TFC_OK);
    EXPECT_EQ(buffer.Get(self.stream), std::vector<float>(4, 4.0f));
  });
}

TEST_F(GpuTroubleTest, MemoryOfTheHostAndOfAnotherGpuIsRefused) {
  RunGpuWorld(1, [](GpuRank& self) {
    std::vector<float> host(4, 1.0f);
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "x");
    tfc_span span{host.data(), host.data(), 4};
    request.spans = &span;
    request.num_spans = 1;
    CallResult result = self.Run(request);
    EXPECT_EQ(result.code, TFC_INVALID_ARGUMENT);
    EXPECT_TRUE(Contains(result.message, "memory of the host")) << result.message;
    OnGpu<float> first(0, 4);
    ASSERT_EQ(self.AllReduce(first, 4, TFC_FLOAT32).code, TFC_OK);
    OnGpu<float> second(1, 4);
    result = self.AllReduce(second, 4, TFC_FLOAT32);
    EXPECT_EQ(result.code, TFC_INVALID_ARGUMENT);
    EXPECT_TRUE(Contains(result.message, "it is on GPU 1, but rank 0 works on GPU 0")) << result.message;
    span = {first.data(), second.data(), 4};
    result = self.Run(request);
    EXPECT_EQ(result.code, TFC_INVALID_ARGUMENT);
    EXPECT_TRUE(Contains(result.message, "an output is on GPU 1")) << result.message;
    // None of it has hurt.
    EXPECT_EQ(self.AllReduce(first, 4, TFC_FLOAT32).code, TFC_OK);
  });
}

TEST_F(GpuTroubleTest, MemoryOfTheHostIsReportedToAllRanks) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    std::vector<float> host(4, 1.0f);
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "x");
    tfc_span span{buffer.data(), buffer.data(), 4};
    request.spans = &span;
    request.num_spans = 1;
    uint64_t ticket = 0;
    ASSERT_EQ(self.Run(request, &ticket).code, TFC_OK);
    ASSERT_EQ(self.Wait(ticket).code, TFC_OK);
    self.Barrier();
    if (self.rank == 1) span = {host.data(), host.data(), 4};
    CallResult result = self.Run(request, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_INVALID_ARGUMENT) << result.message;
    EXPECT_EQ(result.peer, 1);
    EXPECT_TRUE(Contains(result.message, "rank 1: allreduce 'x': an input: it is memory of the host"))
        << result.message;
  });
}

TEST_F(GpuTroubleTest, OneNameOnAGpuAndInTheHostsMemoryIsAMismatch) {
  for (const int on_gpu : {0, 1}) {
    RunGpuWorld(2, [on_gpu](GpuRank& self) {
      std::string message;
      if (self.rank == on_gpu) {
        OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
        Launched launched;
        int code = TFC_OK;
        (void)SubmitByName(self, "mixed", buffer, 8, &launched, &code);
        if (code == TFC_OK) {
          launched.WaitFor(1);
          code = launched.codes[0];
        }
        EXPECT_EQ(code, TFC_MISMATCH);
        return;
      }
      std::vector<float> host(8, 1.0f);
      tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "mixed");
      const tfc_span span{host.data(), host.data(), 8};
      request.spans = &span;
      request.num_spans = 1;
      const CallResult result = SubmitAndWait(self.communicator, request);
      EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
      EXPECT_TRUE(Contains(result.message, "where 'mixed' lies")) << result.message;
      const std::string gpu_view =
          "rank " + std::to_string(on_gpu) + ": allreduce 'mixed' float32[8 elements] sum on a GPU";
      EXPECT_TRUE(Contains(result.message, gpu_view)) << result.message;
      EXPECT_TRUE(Contains(result.message, "in the host's memory")) << result.message;
    });
  }
}

TEST_F(GpuTroubleTest, RanksThatCallDifferentThingsGetAMismatch) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
    uint64_t ticket = 0;
    CallResult result = self.AllReduce(buffer, self.rank == 0 ? 8 : 5, TFC_FLOAT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_MISMATCH);
    EXPECT_TRUE(Contains(result.message, "rank 0: allreduce 'x' float32[8 elements]")) << result.message;
    EXPECT_TRUE(Contains(result.message, "rank 1: allreduce 'x' float32[5 elements]")) << result.message;
  });
}

TEST_F(GpuTroubleTest, EqualBytesOfAnotherTypeAreAMismatch) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
    uint64_t ticket = 0;
    CallResult result = self.AllReduce(buffer, 8, self.rank == 0 ? TFC_FLOAT32 : TFC_INT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
  });
}

TEST_F(GpuTroubleTest, ARankWithoutNcclIsNamedOnAllRanks) {
  WorldOptions options;
  options.size = 2;
  RunWorld(options, [](int rank, tfc_communicator* communicator) {
    tfc_device_options devices = StandinOptions();
    if (rank == 1) devices.nccl_library = "/nowhere/libnccl.so.2";
    ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
    const GpuRank self{rank, 2, communicator};
    OnGpu<float> buffer(rank, std::vector<float>(4, 1.0f));
    for (int again = 0; again < 2; ++again) {
      const CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32);
      EXPECT_EQ(result.code, TFC_UNIMPLEMENTED) << result.message;
      EXPECT_TRUE(Contains(result.message, "rank 1 cannot use GPUs")) << result.message;
      EXPECT_TRUE(Contains(result.message, "/nowhere/libnccl.so.2")) << result.message;
      EXPECT_TRUE(Contains(result.message, "cannot mix")) << result.message;
    }
    // The processors can still talk.
    std::vector<float> host(3, 1.0f);
    EXPECT_EQ(AllReduce(communicator, &host).code, TFC_OK);
    EXPECT_EQ(host, std::vector<float>(3, 2.0f));
  });
}

TEST_F(GpuTroubleTest, TwoRanksOnOneGpuAreRefusedUnlessAllowed) {
  for (const int share : {0, 1}) {
    WorldOptions options;
    RunWorld(options, [share](int rank, tfc_communicator* communicator) {
      tfc_device_options devices = StandinOptions();
      devices.share_gpus = share;
      ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
      GpuRank self{rank, 2, communicator};
      cuStreamCreateWithPriority(&self.stream, 0, 0);  // one stream for both ranks could not come to an end
      OnGpu<float> buffer(0, std::vector<float>(4, 1.0f));
      const CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32);
      EXPECT_EQ(result.code, share != 0 ? TFC_OK : TFC_FAILED_PRECONDITION) << result.message;
      EXPECT_EQ(buffer.Get(self.stream), std::vector<float>(4, share != 0 ? 2.0f : 1.0f));
    });
  }
}

TEST_F(GpuTroubleTest, AnErrorOfNcclReachesEveryRankWithItsText) {
  standin_set("fail:ncclAllReduce", 5);  // the third operation of one of the two ranks
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    CallResult result;
    for (int i = 0; i < 10 && result.code == TFC_OK; ++i) {
      uint64_t ticket = 0;
      result = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
      if (result.code == TFC_OK) result = self.Wait(ticket);
    }
    EXPECT_EQ(result.code, TFC_DEVICE) << result.message;
    EXPECT_TRUE(Contains(result.message, "ncclAllReduce: NCCL 2.27.3: unhandled system error")) << result.message;
    EXPECT_TRUE(Contains(result.message, "GPU ")) << result.message;
    EXPECT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32).code, TFC_DEVICE);
  });
}

TEST_F(GpuTroubleTest, AnErrorInTheBackgroundIsFoundByAsking) {
  std::atomic<bool> over{false};
  RunGpuWorld(2, [&over](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    uint64_t ticket = 0;
    ASSERT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket).code, TFC_OK);
    ASSERT_EQ(self.Wait(ticket).code, TFC_OK);
    self.Barrier();        // the error is one for all ranks of the process
    if (self.rank == 1) {  // it never comes to the second one ...
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const CallResult called = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    EXPECT_EQ(called.code, TFC_OK) << called.message;
    standin_set("async_error", 3);  // ... and before that matters NCCL reports an error
    const CallResult result = self.Wait(ticket);
    over = true;
    EXPECT_EQ(result.code, TFC_DEVICE) << result.message;
    EXPECT_TRUE(Contains(result.message, "internal error")) << result.message;
  });
}

TEST_F(GpuTroubleTest, AnErrorOfTheGpuItselfEndsTheCommunicator) {
  RunGpuWorld(1, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    standin_set("fail:cuEventQuery", 1);
    uint64_t ticket = 0;
    CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_DEVICE);
    EXPECT_TRUE(Contains(result.message, "CUDA_ERROR_ILLEGAL_ADDRESS")) << result.message;
    EXPECT_TRUE(Contains(result.message, "rank 0, GPU 0 (Stand-in, 0000:00:00.0)")) << result.message;
  });
}

TEST_F(GpuTroubleTest, NoMemoryForTheSmallTensorsEndsAllRanks) {
  standin_set("memory", 1 << 20);
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
    uint64_t ticket = 0;
    CallResult result = self.AllReduce(buffer, 8, TFC_FLOAT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_RESOURCE_EXHAUSTED) << result.message;
    EXPECT_TRUE(Contains(result.message, "the buffer for small tensors: GPU ")) << result.message;
    EXPECT_TRUE(Contains(result.message, "cuMemAlloc of 8388608 bytes")) << result.message;
  });
}

TEST_F(GpuTroubleTest, WhoLeavesIsNotWaitedFor) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    uint64_t ticket = 0;
    CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    ASSERT_EQ(self.Wait(ticket).code, TFC_OK);
    if (self.rank == 1) return;
    result = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
    EXPECT_EQ(result.peer, 1);
  });
}

// The call has found the communicator at work, and hands its operation over when that has left.
TEST_F(GpuTroubleTest, ACallThatIsOvertakenByAShutdownIsRefused) {
  RunGpuWorld(1, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    standin_set("hang:cuEventRecord", 1);
    Launched launched;
    int code = TFC_OK;
    std::thread caller([&] { SubmitByName(self, "x", buffer, 4, &launched, &code); });
    while (standin_calls("cuEventCreate") < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(tfc_communicator_shutdown(self.communicator, 20, nullptr), TFC_OK);
    standin_set("hang:cuEventRecord", 0);
    caller.join();
    EXPECT_EQ(code, TFC_FAILED_PRECONDITION) << "no thread is left that could launch it and call back";
  });
}

TEST_F(GpuTroubleTest, RankZeroLeavingEndsTheOthers) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    uint64_t ticket = 0;
    ASSERT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket).code, TFC_OK);
    ASSERT_EQ(self.Wait(ticket).code, TFC_OK);
    if (self.rank == 0) return;
    CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
    EXPECT_EQ(result.peer, 0);
  });
}

TEST_F(GpuTroubleTest, ARankThatDoesNotComeIsNamed) {
  std::atomic<bool> over{false};
  RunGpuWorld(2, [&over](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "x");
    const tfc_span span{buffer.data(), buffer.data(), 4};
    request.spans = &span;
    request.num_spans = 1;
    ASSERT_EQ(self.Run(request).code, TFC_OK);
    self.Barrier();
    if (self.rank == 0) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // alive, and elsewhere
      return;
    }
    request.timeout_s = 0.5;
    uint64_t ticket = 0;
    CallResult result = self.Run(request, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    over = true;
    EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
    EXPECT_EQ(result.peer, 0);
    EXPECT_TRUE(Contains(result.message, "rank 0 did not call it")) << result.message;
  });
}

TEST_F(GpuTroubleTest, AnAbortEndsWhatTheGpusWaitFor) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    ASSERT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32).code, TFC_OK);
    self.Barrier();
    standin_synchronize(self.stream);
    if (self.rank == 1) {
      tfc_communicator_abort(self.communicator, "for the test");
      return;
    }
    uint64_t ticket = 0;
    CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    if (result.code == TFC_OK) result = self.Wait(ticket);
    EXPECT_EQ(result.code, TFC_ABORTED) << result.message;
    standin_synchronize(self.stream);  // ends: nothing waits for the peer any more
  });
}

// The call has found the communicator at work, and hands its operation over when the other rank has aborted and left.
TEST_F(GpuTroubleTest, ACallThatIsOvertakenByAnAbortHearsOfThatAndNotOfTheDeparture) {
  std::atomic<bool> caught{false};
  RunGpuWorld(2, [&caught](GpuRank& self) {
    if (self.rank == 1) {
      while (!caught) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      tfc_communicator_abort(self.communicator, "for the test");
      return;
    }
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    standin_set("hang:cuEventRecord", 1);
    CallResult result;
    std::thread caller([&] { result = self.AllReduce(buffer, 4, TFC_FLOAT32); });
    while (standin_calls("cuEventCreate") < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    caught = true;
    while (RunNow(self.communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM)).code == TFC_OK) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // so that the departure has come, too
    standin_set("hang:cuEventRecord", 0);
    caller.join();
    EXPECT_EQ(result.code, TFC_ABORTED) << result.message;
  });
}

TEST_F(GpuTroubleTest, ConfigurationComesBeforeUse) {
  RunGpuWorld(1, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    ASSERT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32).code, TFC_OK);
    const tfc_device_options devices = StandinOptions();
    EXPECT_EQ(tfc_device_configure(self.communicator, &devices, nullptr), TFC_FAILED_PRECONDITION);
  });
}

TEST_F(GpuTroubleTest, WhatThereIsCanBeAsked) {
  const tfc_device_options devices = StandinOptions();
  tfc_device_libraries found{};
  found.struct_size = sizeof(found);
  ASSERT_EQ(tfc_device_find(&devices, &found, nullptr), TFC_OK);
  EXPECT_EQ(found.cuda_version, 13000);
  EXPECT_EQ(found.nccl_version, 22703);
  EXPECT_EQ(found.num_devices, 4);
  EXPECT_STREQ(found.problem, "");
  tfc_device_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tfc_device_describe(&devices, 1, &info, nullptr), TFC_OK);
  EXPECT_STREQ(info.name, "Stand-in");
  EXPECT_EQ(info.num_peers, 3);
  EXPECT_EQ(info.major, 9);
  EXPECT_EQ(tfc_device_describe(&devices, 9, &info, nullptr), TFC_INVALID_ARGUMENT);
  tfc_device_options nothing = StandinOptions();
  nothing.cuda_library = "/nowhere/libcuda.so.1";
  nothing.nccl_library = "/nowhere/libnccl.so.2";
  ASSERT_EQ(tfc_device_find(&nothing, &found, nullptr), TFC_OK);
  EXPECT_EQ(found.num_devices, 0);
  EXPECT_TRUE(Contains(found.problem, "/nowhere/libcuda.so.1")) << found.problem;
}

}  // namespace
}  // namespace tfc::testing
