// What one queue does must not hold the other one up, and nothing must overtake NCCL's work in the background.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/deadline.h"
#include "gpu_world.h"
#include "testing/log_recorder.h"

namespace tfc::testing {
namespace {

class GpuQueuesTest : public GpuTest {};

// One rank begins with the call by name, the other one with the direct call, and neither goes on before that has ended.
TEST_F(GpuQueuesTest, TheSetUpOfOneQueueDoesNotHoldUpTheOther) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> direct(self.rank, std::vector<float>(4, 1.0f));
    OnGpu<float> named(self.rank, std::vector<float>(4, 2.0f));
    Launched launched;
    uint64_t name_ticket = 0;
    if (self.rank == 0) name_ticket = SubmitByName(self, "named", named, 4, &launched);
    uint64_t ticket = 0;
    const CallResult called = self.AllReduce(direct, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    ASSERT_EQ(called.code, TFC_OK) << called.message;
    const CallResult waited = self.Wait(ticket);
    ASSERT_EQ(waited.code, TFC_OK) << waited.message;
    if (self.rank == 1) name_ticket = SubmitByName(self, "named", named, 4, &launched);
    launched.WaitFor(1);
    EXPECT_EQ(self.Wait(name_ticket).code, TFC_OK);
    EXPECT_EQ(direct.Get(), std::vector<float>(4, 2.0f));
    EXPECT_EQ(named.Get(), std::vector<float>(4, 4.0f));
  });
}

// NCCL connects in the first operation, which settles when all ranks have come to it.
TEST_F(GpuQueuesTest, AnOperationThatDoesNotSettleDoesNotHoldUpTheOtherQueue) {
  standin_set("lazy", 1);
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> direct(self.rank, std::vector<float>(4, 1.0f));
    OnGpu<float> named(self.rank, std::vector<float>(4, 2.0f));
    Launched launched;
    const uint64_t name_ticket = SubmitByName(self, "named", named, 4, &launched);
    if (self.rank == 1) launched.WaitFor(1);
    uint64_t ticket = 0;
    const CallResult called = self.AllReduce(direct, 4, TFC_FLOAT32, TFC_SUM, &ticket);
    ASSERT_EQ(called.code, TFC_OK) << called.message;
    EXPECT_EQ(self.Wait(ticket).code, TFC_OK);
    launched.WaitFor(1);
    EXPECT_EQ(self.Wait(name_ticket).code, TFC_OK);
    EXPECT_EQ(direct.Get(), std::vector<float>(4, 2.0f));
    EXPECT_EQ(named.Get(), std::vector<float>(4, 4.0f));
  });
}

TEST_F(GpuQueuesTest, MoreSmallTensorsThanThereIsRoomForTravelInTurns) {
  constexpr size_t kTensors = 45;
  constexpr size_t kCount = 60000;  // float32: 45 of them are more than the 8 MiB of the buffer
  standin_set("busy", 3);           // what overtakes the operation takes the buffer as it was
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> memory(self.rank, kTensors * kCount);
    std::vector<tfc_span> spans;
    for (size_t i = 0; i < kTensors; ++i) {
      float* const piece = memory.data() + i * kCount;
      std::fill(piece, piece + kCount, static_cast<float>(i + 1));
      spans.push_back(tfc_span{piece, piece, static_cast<int64_t>(kCount)});
    }
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "bucket");
    request.spans = spans.data();
    request.num_spans = spans.size();
    request.prescale = 2.0;
    uint64_t ticket = 0;
    const CallResult called = self.Run(request, &ticket);
    ASSERT_EQ(called.code, TFC_OK) << called.message;
    ASSERT_EQ(self.Wait(ticket).code, TFC_OK);
    const std::vector<float> result = memory.Get();
    for (size_t i = 0; i < kTensors; ++i) {
      EXPECT_EQ(result[i * kCount], 4.0f * static_cast<float>(i + 1));
      EXPECT_EQ(result[(i + 1) * kCount - 1], 4.0f * static_cast<float>(i + 1));
    }
  });
}

TEST_F(GpuQueuesTest, ACallThatDoesNotReturnIsLeftBehindAtTheEnd) {
  static auto* const recorder = new LogRecorder();  // who is left behind may write to it
  WorldOptions options;
  options.log = [](void* self, int32_t, const char* message) {
    static_cast<LogRecorder*>(self)->log().Warning(message);
  };
  options.log_user = recorder;
  RunGpuWorld(
      1,
      [](GpuRank& self) {
        OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
        uint64_t ticket = 0;
        ASSERT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32, TFC_SUM, &ticket).code, TFC_OK);
        ASSERT_EQ(self.Wait(ticket).code, TFC_OK);
        standin_set("hang:ncclCommFinalize", 1);
        EXPECT_EQ(tfc_communicator_shutdown(self.communicator, 0.1, nullptr), TFC_OK);
      },
      options);
  EXPECT_TRUE(recorder->Contains("does not return; its thread is left behind"));
  // It comes back when the communicator has been given back, and finds what it uses.
  standin_set("hang:ncclCommFinalize", 0);
  const Deadline deadline = Deadline::After(30);
  while (standin_calls("ncclCommDestroy") == 0 && !deadline.Passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the stand-in only counts
  EXPECT_GT(standin_calls("ncclCommDestroy"), 0);
}

TEST_F(GpuQueuesTest, WhoCannotUseGpusSaysSoOnce) {
  WorldOptions options;
  std::promise<void> left;
  RunWorld(options, [&left](int rank, tfc_communicator* communicator) {
    tfc_device_options devices = StandinOptions();
    if (rank == 1) devices.cuda_library = "/nowhere/libcuda.so.1";
    ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
    const GpuRank self{rank, 2, communicator};
    OnGpu<float> buffer(0, std::vector<float>(4, 1.0f));
    void* memory = nullptr;
    for (int again = 0; again < 3 && rank == 1; ++again)
      EXPECT_EQ(tfc_device_allocate(communicator, nullptr, 8, &memory, nullptr), TFC_UNIMPLEMENTED);
    const CallResult result = self.AllReduce(buffer, 4, TFC_FLOAT32);
    EXPECT_EQ(result.code, TFC_UNIMPLEMENTED) << result.message;
    self.Barrier();
    if (rank == 0) {  // leaves; no rank waits for it
      EXPECT_EQ(tfc_communicator_shutdown(communicator, 0.2, nullptr), TFC_OK);
      left.set_value();
      return;
    }
    ASSERT_EQ(left.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.broken, 0);
  });
}

TEST_F(GpuQueuesTest, TheEndComesDuringTheFirstUse) {
  for (int turn = 0; turn < 30; ++turn) {
    RunGpuWorld(1, [turn](GpuRank& self) {
      OnGpu<float> buffer(0, std::vector<float>(4, 1.0f));
      std::atomic<bool> begun{false};
      std::thread user([&] {
        begun = true;
        for (int i = 0; i < 3; ++i) (void)self.AllReduce(buffer, 4, TFC_FLOAT32);
      });
      while (!begun) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(turn * 10));  // another moment of the first use
      EXPECT_EQ(tfc_communicator_shutdown(self.communicator, 5, nullptr), TFC_OK);
      user.join();
      EXPECT_NE(self.AllReduce(buffer, 4, TFC_FLOAT32).code, TFC_OK);
    });
  }
}

}  // namespace
}  // namespace tfc::testing
