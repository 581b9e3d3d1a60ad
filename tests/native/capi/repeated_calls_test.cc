// The same call again and again: what is skipped must change neither a result nor an error.
#include "capi/repeated_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "capi/arguments.h"
#include "testing/world.h"

namespace tfc::testing {
namespace {

constexpr int kRepetitions = 200;

std::shared_ptr<CommunicatorImpl> Alone() {
  CommunicatorOptions options;
  options.addresses.resize(1);
  return CommunicatorImpl::Create(nullptr, options).Take();
}

// An all-reduce of four floats, shape and all, as the cache sees it.
struct Example {
  float input[4] = {1, 2, 3, 4}, output[4] = {};
  int64_t shape[2] = {2, 2};
  tfc_span span{input, output, 4};
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "loss");

  Example() {
    request.spans = &span;
    request.num_spans = 1;
    request.shape = shape;
    request.ndim = 2;
  }
  std::unique_ptr<Prepared> Prepare(const std::shared_ptr<CommunicatorImpl>& impl) const {
    Operation operation;
    EXPECT_TRUE(FillOperation(request, impl->engine().topology(), &operation).ok());
    return impl->engine().Prepare(operation);
  }
};

TEST(RepeatedCallsTest, FindsTheSameCallOnOtherMemory) {
  const auto impl = Alone();
  RepeatedCalls calls;
  Example first, second;
  EXPECT_EQ(calls.Find(impl, first.request), nullptr);
  calls.Remember(impl, first.request, first.Prepare(impl));
  const Prepared* found = calls.Find(impl, second.request);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->operation.input[0].data, reinterpret_cast<const std::byte*>(second.input));
  EXPECT_EQ(found->operation.output[0].data, reinterpret_cast<std::byte*>(second.output));
  EXPECT_EQ(found->operation.input[0].size, sizeof(second.input));
  EXPECT_EQ(found->signature, found->operation.Signature());
}

TEST(RepeatedCallsTest, AnythingElseIsAnotherCall) {
  const auto impl = Alone();
  const auto other_session = Alone();
  RepeatedCalls calls;
  const Example known;
  calls.Remember(impl, known.request, known.Prepare(impl));
  EXPECT_NE(calls.Find(impl, known.request), nullptr);
  EXPECT_EQ(calls.Find(other_session, known.request), nullptr);
  const std::vector<std::function<void(Example*)>> changes = {
      [](Example* e) { e->request.collective = TFC_BROADCAST; },
      [](Example* e) { e->request.dtype = TFC_INT32; },
      [](Example* e) { e->request.op = TFC_MAX; },
      [](Example* e) { e->request.root = 1; },
      [](Example* e) { e->request.prescale = 0.5; },
      [](Example* e) { e->request.postscale = 2; },
      [](Example* e) { e->request.timeout_s = 7; },
      [](Example* e) { e->request.name = "los"; },
      [](Example* e) { e->request.name = nullptr; },
      [](Example* e) { e->request.num_spans = 0; },
      [](Example* e) { e->span.count = 3; },
      [](Example* e) { e->shape[1] = 3; },
      [](Example* e) { e->request.ndim = 1; },
      [](Example* e) { e->request.shape = nullptr; },
      [](Example* e) { e->request.splits = e->shape; },
      [](Example* e) { e->span.input = nullptr; },
      [](Example* e) { e->span.output = nullptr; },
      [](Example* e) { e->request.spans = nullptr; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Example changed;
    changes[i](&changed);
    EXPECT_EQ(calls.Find(impl, changed.request), nullptr) << "change " << i;
  }
}

TEST(RepeatedCallsTest, TheOldestMakesRoom) {
  const auto impl = Alone();
  RepeatedCalls calls;
  std::vector<Example> examples(5);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  for (size_t i = 0; i < examples.size(); ++i) {
    examples[i].request.name = names[i].c_str();
    calls.Remember(impl, examples[i].request, examples[i].Prepare(impl));
  }
  EXPECT_EQ(calls.Find(impl, examples[0].request), nullptr);
  for (size_t i = 1; i < examples.size(); ++i) EXPECT_NE(calls.Find(impl, examples[i].request), nullptr) << i;
}

TEST(RepeatedCallsTest, OnlyWhatHasOnePieceAndOneResultRepeats) {
  Example example;
  EXPECT_TRUE(RepeatedCalls::CanRepeat(example.request));
  EXPECT_TRUE(RepeatedCalls::CanRepeat(MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM)));
  example.request.collective = TFC_ALLGATHER;
  EXPECT_FALSE(RepeatedCalls::CanRepeat(example.request));
  EXPECT_FALSE(RepeatedCalls::CanRepeat(MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM)));
}

class RepeatedWorldTest : public ::testing::TestWithParam<int> {
 protected:
  void EveryRank(const std::function<void(int, tfc_communicator*)>& body, double op_timeout_s = 20) {
    WorldOptions options;
    options.size = GetParam();
    options.op_timeout_s = op_timeout_s;
    EXPECT_EQ(RunWorld(options, body), std::vector<int>(static_cast<size_t>(GetParam()), TFC_OK));
  }
};

INSTANTIATE_TEST_SUITE_P(Sizes, RepeatedWorldTest, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return "shm" + std::to_string(info.param); });

// More kinds of calls than a thread remembers, in fresh memory each time.
TEST_P(RepeatedWorldTest, EveryResultIsExactAndCounted) {
  EveryRank([](int rank, tfc_communicator* communicator) {
    const std::vector<size_t> counts = {1, 1, 8, 9, 300, 70000};
    uint64_t calls = 0;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      for (size_t kind = 0; kind < counts.size(); ++kind) {
        if (counts[kind] > 1000 && repetition % 20 != 0) continue;
        const int32_t op = kind == 1 ? TFC_MAX : TFC_SUM;
        std::vector<float> values(counts[kind]);
        std::iota(values.begin(), values.end(), static_cast<float>(rank * 3 + repetition));
        const CallResult result = AllReduce(communicator, &values, op);
        ASSERT_EQ(result.code, TFC_OK) << result.message;
        ++calls;
        float all = 0;
        for (int r = 0; r < GetParam(); ++r) all += static_cast<float>(r * 3 + repetition);
        for (size_t i = 0; i < values.size(); ++i) {
          const float sum = all + static_cast<float>(GetParam()) * static_cast<float>(i);
          const float largest = static_cast<float>((GetParam() - 1) * 3 + repetition) + static_cast<float>(i);
          ASSERT_EQ(values[i], op == TFC_MAX ? largest : sum) << "element " << i << " of kind " << kind;
        }
      }
      const CallResult barrier = RunNow(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM));
      ASSERT_EQ(barrier.code, TFC_OK) << barrier.message;
      ++calls;
    }
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.completed, calls);
    EXPECT_EQ(info.pending, 0u);
  });
}

void Repeat(tfc_communicator* communicator, int size) {
  std::vector<float> values{1};
  for (int i = 0; i < kRepetitions; ++i) {
    values[0] = 1;
    const CallResult result = AllReduce(communicator, &values, TFC_SUM, "step");
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    ASSERT_EQ(values[0], static_cast<float>(size));
  }
}

TEST_P(RepeatedWorldTest, AMismatchIsStillFoundOnAllRanks) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank: no other to disagree with";
  EveryRank([](int rank, tfc_communicator* communicator) {
    Repeat(communicator, GetParam());
    std::vector<float> values(rank == 0 ? 1 : 2, 1.0f);
    const CallResult result = AllReduce(communicator, &values, TFC_SUM, "step");
    EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
    EXPECT_NE(result.message.find("1 elements"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("2 elements"), std::string::npos) << result.message;
  });
}

TEST_P(RepeatedWorldTest, AnExtraCallIsStillAMismatch) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank: no other to disagree with";
  EveryRank([](int rank, tfc_communicator* communicator) {
    Repeat(communicator, GetParam());
    std::vector<float> values{1};
    const CallResult result = rank == 0 ? AllReduce(communicator, &values, TFC_SUM, "step")
                                        : RunNow(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM));
    EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
    EXPECT_NE(result.message.find("allreduce 'step'"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("barrier"), std::string::npos) << result.message;
  });
}

TEST_P(RepeatedWorldTest, ARankThatLeavesIsStillNamed) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank: no other to leave";
  EveryRank([](int rank, tfc_communicator* communicator) {
    Repeat(communicator, GetParam());
    if (rank == 1) return;
    std::vector<float> values{1};
    const CallResult result = AllReduce(communicator, &values, TFC_SUM, "step");
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
    EXPECT_EQ(result.peer, 1) << result.message;
    EXPECT_NE(result.message.find("finished after 200 operations"), std::string::npos) << result.message;
  });
}

TEST_P(RepeatedWorldTest, TheDeadlineStillHolds) {
  if (GetParam() != 2) GTEST_SKIP() << "two ranks show it";
  std::atomic<bool> given_up{false};
  const double timeout_s = 3;  // also the first calls have it, on whatever machine
  EveryRank(
      [&](int rank, tfc_communicator* communicator) {
        Repeat(communicator, GetParam());
        if (rank == 1) {
          while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        std::vector<float> values{1};
        const CallResult result = AllReduce(communicator, &values, TFC_SUM, "step");
        EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
        EXPECT_EQ(result.peer, 1) << result.message;
        EXPECT_NE(result.message.find("allreduce 'step' timed out after 3 s"), std::string::npos) << result.message;
        given_up = true;
      },
      timeout_s);
}

TEST_P(RepeatedWorldTest, AnAbortIsStillHeard) {
  std::atomic<int> repeating{GetParam() - 1};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    Repeat(communicator, GetParam());
    if (rank != 0) --repeating;
    while (repeating > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == 0) tfc_communicator_abort(communicator, "enough");
    std::vector<float> values{1};
    CallResult result;
    while (result.code == TFC_OK && rank != 0) result = AllReduce(communicator, &values, TFC_SUM, "step");
    if (rank == 0) result = AllReduce(communicator, &values, TFC_SUM, "step");
    EXPECT_EQ(result.code, rank == 0 ? TFC_CANCELLED : TFC_ABORTED) << result.message;
  });
}

}  // namespace
}  // namespace tfc::testing
