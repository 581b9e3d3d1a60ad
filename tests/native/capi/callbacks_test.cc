// What a callback may do: use a thread's stack, take its time while no lock is held, and not wait for itself.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "testing/world.h"

namespace tfc::testing {
namespace {

struct Case {
  std::string label;
  WorldOptions options;
};

void PrintTo(const Case& value, std::ostream* stream) { *stream << value.label; }

WorldOptions World(int size, int32_t transport, std::vector<std::string> nodes = {}) {
  WorldOptions options;
  options.size = size;
  options.transport = transport;
  options.nodes = std::move(nodes);
  return options;
}

// A done-callback that runs `body` once and can be waited for.
class Callback {
 public:
  explicit Callback(std::function<void(int code)> body) : body_(std::move(body)) {}

  static void Done(void* user, const tfc_error* error) {
    auto* self = static_cast<Callback*>(user);
    self->body_(error == nullptr ? TFC_OK : error->code);
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->called_ = true;
    self->changed_.notify_all();
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return called_; });
  }

 private:
  const std::function<void(int)> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool called_ = false;
};

class CallbackTest : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().options.size; }
  void EveryRank(const std::function<void(int, tfc_communicator*)>& body) {
    EXPECT_EQ(RunWorld(GetParam().options, body), std::vector<int>(static_cast<size_t>(size()), TFC_OK));
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, CallbackTest,
                         ::testing::Values(Case{"one", World(1, TFC_TRANSPORT_AUTO)},
                                           Case{"shm2", World(2, TFC_TRANSPORT_AUTO)},
                                           Case{"tcp2", World(2, TFC_TRANSPORT_TCP)},
                                           Case{"nodes2x2", World(4, TFC_TRANSPORT_AUTO, {"a", "a", "b", "b"})}),
                         [](const auto& info) { return info.param.label; });

// Writes to 2 MiB below the caller's frame, from the top down as calls do.
[[gnu::noinline]] int UseStack(int calls) {
  volatile char frame[64 * 1024];
  std::memset(const_cast<char*>(frame), calls, sizeof(frame));
  const int below = calls == 0 ? 0 : UseStack(calls - 1);
  return below + frame[calls];
}

constexpr int kDeep = 32;  // of 64 KiB each
constexpr int kSumOfDeep = kDeep * (kDeep + 1) / 2;

void Submit(tfc_communicator* communicator, const char* name, Callback* callback, float* value) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, name);
  const tfc_span span{value, value, 1};
  request.spans = &span;
  request.num_spans = 1;
  ASSERT_EQ(tfc_submit(communicator, &request, &Callback::Done, callback, nullptr), TFC_OK);
}

// Starts bucket 0 of a plan of `buckets`.
void StartPlan(tfc_communicator* communicator, int buckets, Callback* callback, float* value) {
  tfc_plan_options options{};
  options.struct_size = sizeof(options);
  options.name = "plan";
  options.signature = "float32[1]";
  options.num_buckets = buckets;
  options.op = TFC_SUM;
  options.prescale = options.postscale = 1;
  tfc_plan* plan = nullptr;
  ASSERT_EQ(tfc_plan_acquire(communicator, &options, &plan, nullptr), TFC_OK);
  const tfc_span span{value, value, 1};
  EXPECT_EQ(tfc_plan_start(plan, 0, TFC_FLOAT32, &span, 1, &Callback::Done, callback, nullptr), TFC_OK);
  tfc_plan_release(plan);
}

CallResult SumOfOne(tfc_communicator* communicator) {
  std::vector<float> value{1};
  return AllReduce(communicator, &value);
}

TEST_P(CallbackTest, HasAThreadsStack) {
  EveryRank([](int, tfc_communicator* communicator) {
    int named = 0, planned = 0;
    Callback on_name([&named](int) { named = UseStack(kDeep); });
    Callback on_plan([&planned](int) { planned = UseStack(kDeep); });
    float value = 1, other = 1;
    Submit(communicator, "deep", &on_name, &value);
    on_name.Await();
    StartPlan(communicator, 1, &on_plan, &other);
    on_plan.Await();
    EXPECT_EQ(named, kSumOfDeep);
    EXPECT_EQ(planned, kSumOfDeep);
  });
}

struct Gathering {
  tfc_communicator* communicator = nullptr;
  std::vector<float> result;
  int depth = 0;
  int inner = TFC_OK;

  static void* Allocate(void* user, const int64_t*, int32_t size) {
    auto* self = static_cast<Gathering*>(user);
    self->depth = UseStack(kDeep);
    self->inner = SumOfOne(self->communicator).code;
    self->result.resize(static_cast<size_t>(size));
    return self->result.data();
  }
};

TEST_P(CallbackTest, AllocatesOnAThreadsStackAndMustNotWait) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    for (const bool by_name : {false, true}) {
      Gathering gathering;
      gathering.communicator = communicator;
      const auto mine = static_cast<float>(rank);
      const int64_t shape[] = {1};
      const tfc_span span{&mine, nullptr, 1};
      tfc_request request = MakeRequest(TFC_ALLGATHER, TFC_FLOAT32, TFC_SUM, "gather");
      request.spans = &span;
      request.num_spans = 1;
      request.shape = shape;
      request.ndim = 1;
      request.allocate = &Gathering::Allocate;
      request.allocate_user = &gathering;
      const CallResult result = by_name ? SubmitAndWait(communicator, request) : RunNow(communicator, request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      EXPECT_EQ(gathering.depth, kSumOfDeep);
      EXPECT_EQ(gathering.inner, TFC_FAILED_PRECONDITION);
      ASSERT_EQ(gathering.result.size(), static_cast<size_t>(size()));
      EXPECT_EQ(gathering.result.back(), static_cast<float>(size() - 1));
    }
  });
}

TEST_P(CallbackTest, ThatRunsACollectiveIsRefused) {
  if (size() == 1) GTEST_SKIP() << "a world of one calls back on the caller's thread, and does not wait";
  EveryRank([](int, tfc_communicator* communicator) {
    CallResult in_name, in_plan;
    Callback on_name([&](int) { in_name = SumOfOne(communicator); });
    Callback on_plan([&](int) { in_plan = SumOfOne(communicator); });
    float value = 1, other = 1;
    Submit(communicator, "outer", &on_name, &value);
    on_name.Await();
    StartPlan(communicator, 1, &on_plan, &other);
    on_plan.Await();
    for (const CallResult& inner : {in_name, in_plan}) {
      EXPECT_EQ(inner.code, TFC_FAILED_PRECONDITION);
      EXPECT_NE(inner.message.find("a callback must not run a collective"), std::string::npos) << inner.message;
    }
    const CallResult after = SumOfOne(communicator);
    EXPECT_EQ(after.code, TFC_OK) << after.message;
  });
}

TEST_P(CallbackTest, MaySubmitAnotherOperation) {
  EveryRank([](int, tfc_communicator* communicator) {
    float first = 1, second = 1;
    Callback inner([](int code) { EXPECT_EQ(code, TFC_OK); });
    Callback outer([&](int) { Submit(communicator, "second", &inner, &second); });
    Submit(communicator, "first", &outer, &first);
    outer.Await();
    inner.Await();
  });
}

// Cancelled by a direct call that fails, which holds the lock of direct calls: others must get through it meanwhile.
TEST_P(CallbackTest, ThatIsCancelledHoldsNoLock) {
  if (size() == 1) GTEST_SKIP() << "nothing waits in a world of one";
  EveryRank([](int rank, tfc_communicator* communicator) {
    int code = TFC_OK, elsewhere = TFC_OK, here = TFC_OK;
    Callback cancelled([&](int how) {
      code = how;
      here = SumOfOne(communicator).code;
      std::thread([&] { elsewhere = SumOfOne(communicator).code; }).join();
    });
    float value = 1, other = 1;
    Callback bucket([](int how) { EXPECT_NE(how, TFC_OK); });
    if (rank == 0) {
      Submit(communicator, "only here", &cancelled, &value);
      StartPlan(communicator, 2, &bucket, &other);
    }
    std::vector<float> values(rank == 0 ? 8 : 5, 1);
    EXPECT_EQ(AllReduce(communicator, &values).code, TFC_MISMATCH);
    if (rank != 0) return;
    cancelled.Await();
    bucket.Await();
    EXPECT_EQ(code, TFC_MISMATCH);
    EXPECT_EQ(here, TFC_FAILED_PRECONDITION);
    EXPECT_EQ(elsewhere, TFC_MISMATCH);
  });
}

// An operation behind a callback that blocks has ended long after its timeout on no rank, although its memory is in
// use until the callback returns.
TEST(BlockingCallbackTest, EndsTheCommunicatorAfterTheTimeoutOfWhatWaitsForIt) {
  std::atomic<bool> blocks{false}, ended{false};
  WorldOptions options = World(2, TFC_TRANSPORT_TCP);
  options.op_timeout_s = 60;
  RunWorld(options, [&](int rank, tfc_communicator* communicator) {
    const tfc_request barrier = MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM, "b");
    std::vector<float> values(3, 1);
    const tfc_span span{values.data(), values.data(), 3};
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM);
    request.spans = &span;
    request.num_spans = 1;
    Callback blocking([&](int code) {
      EXPECT_EQ(code, TFC_OK);
      blocks = blocks || rank == 0;
      for (int i = 0; rank == 0 && !ended && i < 60 * 200; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    ASSERT_EQ(tfc_submit(communicator, &barrier, &Callback::Done, &blocking, nullptr), TFC_OK);
    while (!blocks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == 0) request.timeout_s = 0.2;
    const CallResult result = RunNow(communicator, request);
    EXPECT_EQ(result.code, TFC_INTERNAL) << result.message;
    EXPECT_EQ(result.peer, 0);
    EXPECT_NE(result.message.find("has not ended on rank 0"), std::string::npos) << result.message;
    if (rank == 1) ended = true;
    blocking.Await();
  });
}

}  // namespace
}  // namespace tfc::testing
