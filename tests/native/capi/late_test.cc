// A late rank is not a lost rank: the others wait for it until the operation timeout, and what they have sent is read.
//
// `make test-long` runs these with a rank that is later than every limit for lost hosts: TFC_TEST_LATE_SECONDS, and
// TFC_TEST_LATE_MIB for the size.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "testing/world.h"

namespace tfc::testing {
namespace {

using Clock = std::chrono::steady_clock;

double FromEnvironment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atof(text);
}

const double kLateSeconds = FromEnvironment("TFC_TEST_LATE_SECONDS", 0.3);
const auto kElements = static_cast<size_t>(FromEnvironment("TFC_TEST_LATE_MIB", 16) * (1 << 20) / sizeof(float));

WorldOptions TwoHosts() {
  WorldOptions options;
  options.size = 4;
  options.nodes = {"a", "a", "b", "b"};
  options.op_timeout_s = 60 + 2 * kLateSeconds;
  return options;
}

constexpr int kLate = 3;

struct Waiting {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  CallResult result;
};

void OnDone(void* user, const tfc_error* error) {
  auto* waiting = static_cast<Waiting*>(user);
  std::lock_guard<std::mutex> lock(waiting->mutex);
  if (error != nullptr) waiting->result = CallResult{error->code, error->peer, error->message};
  waiting->done = true;
  waiting->changed.notify_all();
}

CallResult Direct(tfc_communicator* communicator, std::vector<float>* values) {
  return AllReduce(communicator, values);
}

CallResult ByName(tfc_communicator* communicator, std::vector<float>* values) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "late");
  const tfc_span span{values->data(), values->data(), static_cast<int64_t>(values->size())};
  request.spans = &span;
  request.num_spans = 1;
  return SubmitAndWait(communicator, request);
}

CallResult InPlan(tfc_communicator* communicator, std::vector<float>* values) {
  tfc_plan_options options{};
  options.struct_size = sizeof(options);
  options.name = "step";
  options.signature = "a float32[]";
  options.num_buckets = 1;
  options.op = TFC_SUM;
  options.prescale = options.postscale = 1;
  tfc_plan* plan = nullptr;
  EXPECT_EQ(tfc_plan_acquire(communicator, &options, &plan, nullptr), TFC_OK);
  Waiting waiting;
  const tfc_span span{values->data(), values->data(), static_cast<int64_t>(values->size())};
  EXPECT_EQ(tfc_plan_start(plan, 0, TFC_FLOAT32, &span, 1, &OnDone, &waiting, nullptr), TFC_OK);
  std::unique_lock<std::mutex> lock(waiting.mutex);
  waiting.changed.wait(lock, [&] { return waiting.done; });
  tfc_plan_release(plan);
  return waiting.result;
}

struct Way {
  const char* label;
  CallResult (*reduce)(tfc_communicator*, std::vector<float>*);
};

class LateTest : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, LateTest,
                         ::testing::Values(Way{"direct", &Direct}, Way{"named", &ByName}, Way{"plan", &InPlan}),
                         [](const auto& info) { return info.param.label; });

// The second time the connections and, in a plan, the agreement are there, and the others are in the middle of it.
TEST_P(LateTest, AllWaitForIt) {
  RunWorld(TwoHosts(), [](int rank, tfc_communicator* communicator) {
    for (const double seconds : {0.0, kLateSeconds}) {
      std::vector<float> values(kElements, static_cast<float>(rank + 1));
      if (rank == kLate) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      const CallResult result = GetParam().reduce(communicator, &values);
      ASSERT_EQ(result.code, TFC_OK) << "rank " << rank << ": " << result.message;
      ASSERT_EQ(values.front(), 10.0f);
      ASSERT_EQ(values.back(), 10.0f);
    }
  });
}

// More than the kernels keep goes to a rank that waits for nothing: its connections are read all the same.
TEST(LateRankTest, WhatIsSentToItIsReadBeforeItComes) {
  constexpr int kRounds = 64;
  WorldOptions options = TwoHosts();
  options.op_timeout_s = 20;
  std::atomic<int> through{0};
  RunWorld(options, [&through](int rank, tfc_communicator* communicator) {
    const auto end = Clock::now() + std::chrono::seconds(30);
    while (rank == kLate && through < 3 && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(rank != kLate || through == 3) << "the others wait for this rank to read";
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(64 << 10, static_cast<float>(rank + round));
      tfc_request request = MakeRequest(TFC_BROADCAST, TFC_FLOAT32, TFC_SUM);
      const tfc_span span{values.data(), values.data(), static_cast<int64_t>(values.size())};
      request.spans = &span;
      request.num_spans = 1;
      const CallResult result = RunNow(communicator, request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      ASSERT_EQ(values.back(), static_cast<float>(round));
    }
    ++through;
  });
}

}  // namespace
}  // namespace tfc::testing
