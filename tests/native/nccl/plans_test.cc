// Bucket plans on GPUs: agreed on once, launched in the plan's order.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "executor/channels.h"
#include "gpu_world.h"

namespace tfc::testing {
namespace {

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct ReleasePlan {
  void operator()(tfc_plan* plan) const { tfc_plan_release(plan); }
};
using PlanHandle = std::unique_ptr<tfc_plan, ReleasePlan>;

PlanHandle Acquire(const GpuRank& self, int buckets, const std::string& name = "plan",
                   const std::string& signature = "a\nb", double timeout_s = 0) {
  tfc_plan_options options{};
  options.struct_size = sizeof(options);
  options.name = name.c_str();
  options.signature = signature.c_str();
  options.num_buckets = buckets;
  options.op = TFC_SUM;
  options.prescale = options.postscale = 1.0;
  options.timeout_s = timeout_s;
  tfc_plan* plan = nullptr;
  EXPECT_EQ(tfc_plan_acquire(self.communicator, &options, &plan, nullptr), TFC_OK);
  return PlanHandle(plan);
}

struct Started {
  int code = TFC_OK;
  uint64_t ticket = 0;
};

Started Start(const GpuRank& self, const PlanHandle& plan, int bucket, const OnGpu<float>& buffer, int64_t count,
              Launched* launched) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM);
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
  call.plan = plan.get();
  call.bucket = bucket;
  Started started;
  started.code = tfc_device_run(self.communicator, &request, &call, &started.ticket, nullptr);
  return started;
}

// What came of a bucket: of its start, of its launch or of waiting for it.
CallResult Outcome(const GpuRank& self, const Started& started, Launched* launched) {
  if (started.code != TFC_OK) return {started.code, -1, "at the start"};
  launched->WaitFor(1);
  if (launched->codes[0] != TFC_OK) return {launched->codes[0], -1, "at the launch"};
  return self.Wait(started.ticket);
}

class GpuPlansTest : public GpuTest {};

TEST_F(GpuPlansTest, BucketsRunInThePlansOrderInWhateverOrderTheyAreStarted) {
  for (int size = 1; size <= 3; ++size) {
    RunGpuWorld(size, [](GpuRank& self) {
      constexpr int kBuckets = 3;
      const PlanHandle plan = Acquire(self, kBuckets);
      std::vector<std::unique_ptr<OnGpu<float>>> buffers;
      for (int bucket = 0; bucket < kBuckets; ++bucket)
        buffers.push_back(std::make_unique<OnGpu<float>>(self.rank, 100 + static_cast<size_t>(bucket)));
      for (int step = 1; step <= 4; ++step) {
        Launched launched;
        Started last;
        for (int at = 0; at < kBuckets; ++at) {
          const int bucket = (at + self.rank + step) % kBuckets;
          OnGpu<float>& buffer = *buffers[static_cast<size_t>(bucket)];
          std::fill(buffer.data(), buffer.data() + 100 + bucket, static_cast<float>(step + bucket));
          last = Start(self, plan, bucket, buffer, 100 + bucket, &launched);
          ASSERT_EQ(last.code, TFC_OK);
        }
        launched.WaitFor(kBuckets);
        EXPECT_EQ(launched.codes, std::vector<int>(kBuckets, TFC_OK));
        ASSERT_EQ(self.Wait(last.ticket).code, TFC_OK);
        for (int bucket = 0; bucket < kBuckets; ++bucket)
          EXPECT_EQ(
              buffers[static_cast<size_t>(bucket)]->Get(),
              std::vector<float>(100 + static_cast<size_t>(bucket), static_cast<float>((step + bucket) * self.size)));
      }
    });
  }
}

// Ranks start plans in different orders: each has a queue of its own. Buckets of plans beyond those are matched by
// name.
TEST_F(GpuPlansTest, PlansDoNotWaitForEachOther) {
  RunGpuWorld(2, [](GpuRank& self) {
    constexpr int kPlans = static_cast<int>(kMaxGpuPlans) + 2;
    std::vector<PlanHandle> plans;
    std::vector<std::unique_ptr<OnGpu<float>>> buffers;
    for (int plan = 0; plan < kPlans; ++plan) {
      plans.push_back(Acquire(self, 1, "plan " + std::to_string(plan)));
      buffers.push_back(std::make_unique<OnGpu<float>>(self.rank, std::vector<float>(8, 1.0f)));
    }
    for (int step = 1; step <= 3; ++step) {
      Launched launched;
      std::vector<Started> started;
      for (int at = 0; at < kPlans; ++at) {
        const auto plan = static_cast<size_t>(self.rank == 0 ? at : kPlans - 1 - at);
        started.push_back(Start(self, plans[plan], 0, *buffers[plan], 8, &launched));
      }
      launched.WaitFor(kPlans);
      for (const Started& one : started) EXPECT_EQ(self.Wait(one.ticket).code, TFC_OK);
      for (const auto& buffer : buffers) EXPECT_EQ(buffer->Get(), std::vector<float>(8, static_cast<float>(1 << step)));
    }
  });
}

TEST_F(GpuPlansTest, AForgottenPlanGivesItsQueueToAnother) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    for (int turn = 1; turn <= 8; ++turn) {
      const std::string name = "plan " + std::to_string(turn);
      const PlanHandle plan = Acquire(self, 1, name);
      Launched launched;
      const CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      ASSERT_EQ(tfc_plan_forget(self.communicator, name.c_str(), nullptr), TFC_OK);
      self.Barrier();
    }
    EXPECT_EQ(buffer.Get(), std::vector<float>(4, 256.0f));
  });
  EXPECT_LE(standin_calls("ncclCommInitRankConfig"), 2 * static_cast<long>(kMaxGpuPlans)) << "queues are used again";
}

TEST_F(GpuPlansTest, RanksWithDifferentPlansHearOfThat) {
  RunGpuWorld(2, [](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 1, "plan", self.rank == 0 ? "a\tx\nb" : "a\ty\nc");
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    Launched launched;
    const CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched);
    EXPECT_EQ(result.code, TFC_MISMATCH);
    const CallResult next = RunNow(self.communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM));
    EXPECT_TRUE(Contains(next.message, "the bucket plan 'plan': rank 0: line 2: b; rank 1: line 2: c")) << next.message;
  });
}

TEST_F(GpuPlansTest, APlanOnAGpuAndInTheHostsMemoryIsAMismatch) {
  RunGpuWorld(2, [](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 1);
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    std::vector<float> host(4, 1.0f);
    const tfc_span span{host.data(), host.data(), 4};
    Launched launched;
    int code = self.rank == 0
                   ? Start(self, plan, 0, buffer, 4, &launched).code
                   : tfc_plan_start(plan.get(), 0, TFC_FLOAT32, &span, 1, Launched::Note, &launched, nullptr);
    if (code == TFC_OK) {
      launched.WaitFor(1);
      code = launched.codes[0];
    }
    EXPECT_EQ(code, TFC_MISMATCH);
    const CallResult next = RunNow(self.communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM));
    EXPECT_TRUE(Contains(next.message, "on where the bucket plan 'plan' lies")) << next.message;
  });
}

TEST_F(GpuPlansTest, BucketsOfOnePlanLieInOnePlace) {
  RunGpuWorld(2, [](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 2);
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    std::vector<float> host(4, 1.0f);
    const tfc_span span{host.data(), host.data(), 4};
    Launched launched;
    ASSERT_EQ(Start(self, plan, 0, buffer, 4, &launched).code, TFC_OK);
    EXPECT_EQ(tfc_plan_start(plan.get(), 1, TFC_FLOAT32, &span, 1, Launched::Note, &launched, nullptr),
              TFC_INVALID_ARGUMENT);
    EXPECT_EQ(Start(self, plan, 2, buffer, 4, &launched).code, TFC_INVALID_ARGUMENT) << "there is no such bucket";
    launched.WaitFor(1);
    EXPECT_EQ(launched.codes, std::vector<int>{TFC_OK});
  });
}

// Kernels of NCCL hold their place on the GPU while they wait for the other ranks'. Those of two plans that the ranks
// start in different orders need room for both.
TEST_F(GpuPlansTest, KernelsOfAllQueuesFindRoomAtTheSameTime) {
  standin_set("multiprocessors", 32);
  RunGpuWorld(2, [](GpuRank& self) {
    std::vector<PlanHandle> plans;
    std::vector<std::unique_ptr<OnGpu<float>>> buffers;
    for (int plan = 0; plan < 2; ++plan) {
      plans.push_back(Acquire(self, 1, "plan " + std::to_string(plan), "a", 20));
      buffers.push_back(std::make_unique<OnGpu<float>>(self.rank, std::vector<float>(8, 1.0f)));
    }
    for (int step = 1; step <= 3; ++step) {
      Launched launched;
      std::vector<Started> started;
      for (int at = 0; at < 2; ++at) {
        const auto plan = static_cast<size_t>(self.rank == 0 ? at : 1 - at);
        started.push_back(Start(self, plans[plan], 0, *buffers[plan], 8, &launched));
        ASSERT_EQ(started.back().code, TFC_OK);
        if (step > 1) launched.WaitFor(at + 1);  // it waits on the GPU now; in the first step the ranks agree
      }
      launched.WaitFor(2);
      for (const Started& one : started) {
        const CallResult result = self.Wait(one.ticket, 60);
        ASSERT_EQ(result.code, TFC_OK) << result.message;
      }
      for (const auto& buffer : buffers) EXPECT_EQ(buffer->Get(), std::vector<float>(8, static_cast<float>(1 << step)));
    }
  });
}

// One rank makes a step more than the other one.
TEST_F(GpuPlansTest, ARankThatHasLeftIsMissedInTheNextStep) {
  RunGpuWorld(2, [](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 1);
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    for (int step = 0; step < 3; ++step) {
      Launched launched;
      const CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
    }
    if (self.rank == 1) return;
    Launched launched;
    const CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched);
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
  });
}

TEST_F(GpuPlansTest, ARankThatDoesNotStartABucketIsNamed) {
  std::atomic<bool> over{false};
  RunGpuWorld(2, [&over](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 1, "plan", "a", 0.5);
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    Launched first;
    CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &first), &first);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    self.Barrier();
    if (self.rank == 0) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // alive, and elsewhere
      return;
    }
    Launched launched;
    result = Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched);
    over = true;
    EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
    EXPECT_EQ(result.peer, 0);
    EXPECT_TRUE(Contains(result.message, "rank 0 has not called it")) << result.message;
  });
}

// Its second bucket was begun early, so its time is over long before that of the first one, which it waits behind.
TEST_F(GpuPlansTest, ARankThatDoesNotStartABucketIsNamedThoughAnotherOneWaitsBehindIt) {
  std::atomic<bool> over{false};
  RunGpuWorld(2, [&over](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 2, "plan", "a\nb", 3);
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    Launched step;
    Start(self, plan, 0, buffer, 4, &step);
    const Started last = Start(self, plan, 1, buffer, 4, &step);
    step.WaitFor(2);
    ASSERT_EQ(self.Wait(last.ticket).code, TFC_OK);
    self.Barrier();
    if (self.rank == 0) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // alive, and elsewhere
      return;
    }
    Launched early, launched;
    Start(self, plan, 1, buffer, 4, &early);
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched);
    over = true;
    EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
    EXPECT_EQ(result.peer, 0);
    EXPECT_TRUE(Contains(result.message, "rank 0 has not called it")) << result.message;
  });
}

TEST_F(GpuPlansTest, ARankThatHasJoinedCannotBeMissing) {
  RunGpuWorld(2, [](GpuRank& self) {
    const PlanHandle plan = Acquire(self, 1);
    OnGpu<float> buffer(self.rank, std::vector<float>(4, 1.0f));
    Launched first;
    const CallResult result = Outcome(self, Start(self, plan, 0, buffer, 4, &first), &first);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    self.Barrier();
    if (self.rank == 1) {
      EXPECT_EQ(tfc_join(self.communicator, 0, nullptr, nullptr), TFC_MISMATCH);
      return;
    }
    Launched launched;
    EXPECT_EQ(Outcome(self, Start(self, plan, 0, buffer, 4, &launched), &launched).code, TFC_MISMATCH);
  });
}

// A bucket that waits for its turn in the plan is not waited for any longer once the ranks cannot use GPUs.
TEST_F(GpuPlansTest, WithoutNcclNothingOfAPlanIsLeft) {
  RunWorld(WorldOptions(), [](int rank, tfc_communicator* communicator) {
    tfc_device_options devices = StandinOptions();
    if (rank == 1) devices.nccl_library = "/nowhere/libnccl.so.2";
    ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
    GpuRank self{rank, 2, communicator};
    cuStreamCreateWithPriority(&self.stream, 0, 0);
    const PlanHandle plan = Acquire(self, 2);
    OnGpu<float> buffer(rank, std::vector<float>(4, 1.0f));
    Launched launched;
    if (rank == 0) ASSERT_EQ(Start(self, plan, 1, buffer, 4, &launched).code, TFC_OK);
    self.Barrier();
    EXPECT_EQ(self.AllReduce(buffer, 4, TFC_FLOAT32).code, TFC_UNIMPLEMENTED);
    self.Barrier();
    std::vector<float> host(4, 1.0f);
    const tfc_span span{host.data(), host.data(), 4};
    if (rank == 0) {
      launched.WaitFor(1);
      EXPECT_EQ(tfc_plan_start(plan.get(), 1, TFC_FLOAT32, &span, 1, Launched::Note, &launched, nullptr),
                TFC_INVALID_ARGUMENT);
    }
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.pending, 0u);
    self.Barrier();
  });
}

// Some ranks have started buckets before they hear that there is no NCCL on another one.
TEST_F(GpuPlansTest, WithoutNcclBucketsTravelThroughTheHost) {
  for (int without = 0; without < 2; ++without) {
    RunWorld(WorldOptions(), [without](int rank, tfc_communicator* communicator) {
      tfc_device_options devices = StandinOptions();
      if (rank == without) devices.nccl_library = "/nowhere/libnccl.so.2";
      ASSERT_EQ(tfc_device_configure(communicator, &devices, nullptr), TFC_OK);
      GpuRank self{rank, 2, communicator};
      self.through_host = true;
      cuStreamCreateWithPriority(&self.stream, 0, 0);
      const PlanHandle plan = Acquire(self, 2);
      OnGpu<float> a(rank, std::vector<float>(4, 1.0f)), b(rank, std::vector<float>(6, 2.0f));
      for (int step = 1; step <= 3; ++step) {
        Launched launched;
        const Started second = Start(self, plan, 1, b, 6, &launched);
        const Started first = Start(self, plan, 0, a, 4, &launched);
        launched.WaitFor(2);
        EXPECT_EQ(launched.codes, std::vector<int>(2, TFC_OK));
        EXPECT_EQ(self.Wait(first.ticket).code, TFC_OK);
        EXPECT_EQ(self.Wait(second.ticket).code, TFC_OK);
      }
      EXPECT_EQ(a.Get(), std::vector<float>(4, 8.0f));
      EXPECT_EQ(b.Get(), std::vector<float>(6, 16.0f));
    });
  }
}

}  // namespace
}  // namespace tfc::testing
