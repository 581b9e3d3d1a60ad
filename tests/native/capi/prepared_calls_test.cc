// A call that is checked once and run again and again: what is skipped must change neither a result nor an error.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/world.h"

namespace tfc::testing {
namespace {

constexpr int kRepetitions = 200;

struct CallDeleter {
  void operator()(tfc_call* call) const { tfc_call_release(call); }
};
using Call = std::unique_ptr<tfc_call, CallDeleter>;

CallResult ResultOf(int code, const tfc_error& error) {
  return code == TFC_OK ? CallResult{} : CallResult{code, error.peer, error.message};
}

CallResult Prepare(tfc_communicator* communicator, const tfc_request& request, Call* call) {
  tfc_error error{};
  error.struct_size = sizeof(error);
  tfc_call* raw = nullptr;
  const int code = tfc_call_prepare(communicator, &request, &raw, &error);
  call->reset(raw);
  return ResultOf(code, error);
}

CallResult RunCall(const Call& call, const void* input, void* output) {
  tfc_error error{};
  error.struct_size = sizeof(error);
  const int code = tfc_call_run(call.get(), input, output, &error);
  return ResultOf(code, error);
}

Call PrepareAllReduce(tfc_communicator* communicator, size_t count, int32_t op, const char* name) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, op, name);
  std::vector<float> memory(count);
  const tfc_span span{memory.data(), memory.data(), static_cast<int64_t>(count)};
  request.spans = &span;
  request.num_spans = 1;
  Call call;
  const CallResult prepared = Prepare(communicator, request, &call);
  EXPECT_EQ(prepared.code, TFC_OK) << prepared.message;
  return call;
}

Call PrepareBarrier(tfc_communicator* communicator) {
  Call call;
  const CallResult prepared = Prepare(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM), &call);
  EXPECT_EQ(prepared.code, TFC_OK) << prepared.message;
  return call;
}

// Over shared memory and in a world of one, direct calls run on the caller's thread; over TCP on the library's.
class PreparedCallTest : public ::testing::TestWithParam<std::pair<int, int32_t>> {
 protected:
  static int size() { return GetParam().first; }

  void EveryRank(const std::function<void(int, tfc_communicator*)>& body, double op_timeout_s = 20) {
    WorldOptions options;
    options.size = size();
    options.transport = GetParam().second;
    options.op_timeout_s = op_timeout_s;
    EXPECT_EQ(RunWorld(options, body), std::vector<int>(static_cast<size_t>(size()), TFC_OK));
  }
};

INSTANTIATE_TEST_SUITE_P(Sizes, PreparedCallTest,
                         ::testing::Values(std::pair{1, TFC_TRANSPORT_AUTO}, std::pair{2, TFC_TRANSPORT_AUTO},
                                           std::pair{3, TFC_TRANSPORT_AUTO}, std::pair{2, TFC_TRANSPORT_TCP}),
                         [](const auto& info) {
                           return (info.param.second == TFC_TRANSPORT_TCP ? "tcp" : "shm") +
                                  std::to_string(info.param.first);
                         });

// In fresh memory each time.
TEST_P(PreparedCallTest, EveryResultIsExactAndCounted) {
  EveryRank([](int rank, tfc_communicator* communicator) {
    const std::vector<size_t> counts = {1, 1, 8, 9, 300, 70000, 0};
    std::vector<Call> kinds;
    for (size_t kind = 0; kind < counts.size(); ++kind)
      kinds.push_back(PrepareAllReduce(communicator, counts[kind], kind == 1 ? TFC_MAX : TFC_SUM, ""));
    const Call barrier = PrepareBarrier(communicator);
    uint64_t calls = 0;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      for (size_t kind = 0; kind < counts.size(); ++kind) {
        if (counts[kind] > 1000 && repetition % 20 != 0) continue;
        std::vector<float> values(counts[kind]), results(counts[kind]);
        std::iota(values.begin(), values.end(), static_cast<float>(rank * 3 + repetition));
        const CallResult result = RunCall(kinds[kind], values.data(), results.data());
        ASSERT_EQ(result.code, TFC_OK) << result.message;
        ++calls;
        float all = 0;
        for (int r = 0; r < size(); ++r) all += static_cast<float>(r * 3 + repetition);
        for (size_t i = 0; i < results.size(); ++i) {
          const float sum = all + static_cast<float>(size()) * static_cast<float>(i);
          const float largest = static_cast<float>((size() - 1) * 3 + repetition) + static_cast<float>(i);
          ASSERT_EQ(results[i], kind == 1 ? largest : sum) << "element " << i << " of kind " << kind;
        }
      }
      const CallResult result = RunCall(barrier, nullptr, nullptr);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      ++calls;
    }
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.completed, calls);
    EXPECT_EQ(info.pending, 0u);
  });
}

// 200 operations: prepared ones, and plain ones that ask for the same.
void Repeat(tfc_communicator* communicator, const Call& call, int size) {
  for (int i = 0; i < kRepetitions; ++i) {
    std::vector<float> values{1};
    const CallResult result =
        i % 5 == 4 ? AllReduce(communicator, &values, TFC_SUM, "step") : RunCall(call, values.data(), values.data());
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    ASSERT_EQ(values[0], static_cast<float>(size));
  }
}

TEST_P(PreparedCallTest, AMismatchIsStillFoundOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "there is no rank to disagree with";
  EveryRank([](int rank, tfc_communicator* communicator) {
    const Call call = PrepareAllReduce(communicator, 1, TFC_SUM, "step");
    Repeat(communicator, call, size());
    float values[2] = {1, 1};
    const Call other = PrepareAllReduce(communicator, 2, TFC_SUM, "step");
    const CallResult result = RunCall(rank == 0 ? call : other, values, values);
    EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
    EXPECT_NE(result.message.find("1 elements"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("2 elements"), std::string::npos) << result.message;
  });
}

TEST_P(PreparedCallTest, AnExtraCallIsStillAMismatch) {
  if (size() == 1) GTEST_SKIP() << "there is no rank to disagree with";
  // Over TCP the messages of the two do not meet, and it is found at the deadline.
  const double timeout_s = GetParam().second == TFC_TRANSPORT_TCP ? 3 : 20;
  EveryRank(
      [](int rank, tfc_communicator* communicator) {
        const Call call = PrepareAllReduce(communicator, 1, TFC_SUM, "step");
        Repeat(communicator, call, size());
        float value = 1;
        const Call barrier = PrepareBarrier(communicator);
        const CallResult result = rank == 0 ? RunCall(call, &value, &value) : RunCall(barrier, nullptr, nullptr);
        EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
        EXPECT_NE(result.message.find("allreduce 'step'"), std::string::npos) << result.message;
        EXPECT_NE(result.message.find("barrier"), std::string::npos) << result.message;
      },
      timeout_s);
}

TEST_P(PreparedCallTest, ARankThatLeavesIsStillNamed) {
  if (size() == 1) GTEST_SKIP() << "there is no rank to leave";
  EveryRank([](int rank, tfc_communicator* communicator) {
    const Call call = PrepareAllReduce(communicator, 1, TFC_SUM, "step");
    Repeat(communicator, call, size());
    if (rank == 1) return;
    float value = 1;
    const CallResult result = RunCall(call, &value, &value);
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
    EXPECT_EQ(result.peer, 1) << result.message;
    EXPECT_NE(result.message.find("left after 200 operations"), std::string::npos) << result.message;
  });
}

TEST_P(PreparedCallTest, TheDeadlineStillHolds) {
  if (size() != 2) GTEST_SKIP() << "two ranks show it";
  std::atomic<bool> given_up{false};
  const double timeout_s = 3;  // also the first calls have it, on whatever machine
  EveryRank(
      [&](int rank, tfc_communicator* communicator) {
        const Call call = PrepareAllReduce(communicator, 1, TFC_SUM, "step");
        Repeat(communicator, call, size());
        if (rank == 1) {
          while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        float value = 1;
        const CallResult result = RunCall(call, &value, &value);
        EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
        EXPECT_EQ(result.peer, 1) << result.message;
        EXPECT_NE(result.message.find("allreduce 'step' timed out after 3 s"), std::string::npos) << result.message;
        given_up = true;
      },
      timeout_s);
}

TEST_P(PreparedCallTest, AnAbortIsStillHeard) {
  std::atomic<int> repeating{size() - 1};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    const Call call = PrepareAllReduce(communicator, 1, TFC_SUM, "step");
    Repeat(communicator, call, size());
    if (rank != 0) --repeating;
    while (repeating > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == 0) tfc_communicator_abort(communicator, "enough");
    float value = 1;
    CallResult result;
    do result = RunCall(call, &value, &value);
    while (result.code == TFC_OK && rank != 0);
    EXPECT_EQ(result.code, rank == 0 ? TFC_CANCELLED : TFC_ABORTED) << result.message;
  });
}

TEST(PreparedCallChecks, IsCheckedWhenItIsPrepared) {
  RunWorld(WorldOptions{}, [](int, tfc_communicator* communicator) {
    float value = 1;
    const tfc_span spans[2] = {{&value, &value, 1}, {&value, &value, 1}};
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "loss");
    request.spans = spans;
    const std::vector<std::pair<std::function<void(tfc_request*)>, std::string>> wrong = {
        {[](tfc_request* r) { r->num_spans = 2; }, "only an all-reduce of one span and a barrier"},
        {[](tfc_request* r) { r->collective = TFC_BROADCAST; }, "only an all-reduce of one span and a barrier"},
        {[](tfc_request* r) { r->dtype = 99; }, "unknown dtype 99"},
        {[](tfc_request* r) { r->op = 99; }, "unknown operation 99"},
        {[](tfc_request* r) { r->spans = nullptr; }, "the spans are missing"},
        {[](tfc_request* r) { r->struct_size = 0; }, "struct_size is not set"},
    };
    for (const auto& [change, text] : wrong) {
      tfc_request changed = request;
      changed.num_spans = 1;
      change(&changed);
      Call call;
      const CallResult result = Prepare(communicator, changed, &call);
      EXPECT_EQ(result.code, TFC_INVALID_ARGUMENT) << text;
      EXPECT_NE(result.message.find(text), std::string::npos) << result.message;
      EXPECT_EQ(call, nullptr);
    }
    const Call call = PrepareAllReduce(communicator, 1, TFC_SUM, "loss");
    EXPECT_EQ(RunCall(call, nullptr, &value).code, TFC_INVALID_ARGUMENT);
    EXPECT_EQ(RunCall(call, &value, nullptr).code, TFC_INVALID_ARGUMENT);
    EXPECT_EQ(RunCall(Call(), &value, &value).code, TFC_INVALID_ARGUMENT);
    EXPECT_EQ(RunCall(call, &value, &value).code, TFC_OK);
  });
}

TEST(PreparedCallChecks, OutlivesItsCommunicator) {
  tfc_communicator_options options{};
  options.struct_size = sizeof(options);
  options.size = 1;
  tfc_communicator* communicator = nullptr;
  ASSERT_EQ(tfc_communicator_create(nullptr, &options, &communicator, nullptr), TFC_OK);
  const Call call = PrepareBarrier(communicator);
  EXPECT_EQ(RunCall(call, nullptr, nullptr).code, TFC_OK);
  tfc_communicator_release(communicator);
  const CallResult result = RunCall(call, nullptr, nullptr);
  EXPECT_EQ(result.code, TFC_FAILED_PRECONDITION);
  EXPECT_EQ(result.message, "the call's communicator has been released");
}

}  // namespace
}  // namespace tfc::testing
