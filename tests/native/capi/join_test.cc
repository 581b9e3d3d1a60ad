// Ranks that run out of data at different times, through the C interface.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
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

struct Joined {
  int code = TFC_OK;
  int peer = -1;
  int last = -1;
  std::string message;
};

Joined Join(tfc_communicator* communicator, double timeout_s = 0) {
  tfc_error error{};
  error.struct_size = sizeof(error);
  int32_t last = -1;
  Joined joined;
  joined.code = tfc_join(communicator, timeout_s, &last, &error);
  joined.last = last;
  joined.peer = error.peer;
  if (joined.code != TFC_OK) joined.message = error.message;
  return joined;
}

template <typename T>
CallResult Reduce(tfc_communicator* communicator, std::vector<T>* values, int32_t dtype, int32_t op, bool by_name,
                  const char* name) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, dtype, op, name);
  const tfc_span span{values->data(), values->data(), static_cast<int64_t>(values->size())};
  request.spans = &span;
  request.num_spans = 1;
  return by_name ? SubmitAndWait(communicator, request) : RunNow(communicator, request);
}

// One run of a plan of one bucket.
class PlanRun {
 public:
  PlanRun(tfc_communicator* communicator, const char* name, int32_t op) {
    tfc_plan_options options{};
    options.struct_size = sizeof(options);
    options.name = name;
    options.signature = "float32[9]";
    options.num_buckets = 1;
    options.op = op;
    options.prescale = options.postscale = 1;
    code_ = tfc_plan_acquire(communicator, &options, &plan_, nullptr);
  }
  ~PlanRun() { tfc_plan_release(plan_); }

  int Reduce(std::vector<float>* values) {
    if (code_ != TFC_OK) return code_;
    const tfc_span span{values->data(), values->data(), static_cast<int64_t>(values->size())};
    done_ = false;
    tfc_error error{};
    error.struct_size = sizeof(error);
    const int code = tfc_plan_start(plan_, 0, TFC_FLOAT32, &span, 1, &PlanRun::OnDone, this, &error);
    if (code != TFC_OK) return code;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    return code_;
  }

 private:
  static void OnDone(void* user, const tfc_error* error) {
    auto* run = static_cast<PlanRun*>(user);
    std::lock_guard<std::mutex> lock(run->mutex_);
    run->code_ = error == nullptr ? TFC_OK : error->code;
    run->done_ = true;
    run->changed_.notify_all();
  }

  tfc_plan* plan_ = nullptr;
  int code_ = TFC_OK;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

class JoinTest : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().options.size; }
  void EveryRank(const std::function<void(int, tfc_communicator*)>& body) {
    EXPECT_EQ(RunWorld(GetParam().options, body), std::vector<int>(static_cast<size_t>(size()), TFC_OK));
  }
  // Steps of each rank: all different, the last rank not always the one with the most.
  int Steps(int rank) const { return 2 + 3 * ((rank + 1) % size()); }
  int Longest() const {
    int longest = 0;
    for (int rank = 0; rank < size(); ++rank)
      if (Steps(rank) > Steps(longest)) longest = rank;
    return longest;
  }
  // Sum of 60 (r + 1) over the ranks that still have data at `step`, and their number.
  std::pair<int, int> Expected(int step) const {
    int sum = 0, ranks = 0;
    for (int rank = 0; rank < size(); ++rank) {
      if (Steps(rank) <= step) continue;
      sum += 60 * (rank + 1);
      ++ranks;
    }
    return {sum, ranks};
  }
  template <typename T>
  void CheckUnevenSteps(int32_t dtype, int32_t op, bool by_name) {
    EveryRank([&](int rank, tfc_communicator* communicator) {
      for (int step = 0; step < Steps(rank); ++step) {
        std::vector<T> values(1001, static_cast<T>(60 * (rank + 1) + (op == TFC_AVERAGE ? rank : 0)));
        const CallResult result = Reduce(communicator, &values, dtype, op, by_name, "gradient");
        ASSERT_EQ(result.code, TFC_OK) << result.message;
        const auto [sum, ranks] = Expected(step);
        int extra = 0;
        for (int other = 0; other < size(); ++other) extra += Steps(other) > step ? other : 0;
        using Exact = std::conditional_t<std::is_floating_point_v<T>, T, int>;
        const T expected = static_cast<T>(op == TFC_SUM ? static_cast<Exact>(sum)
                                                        : static_cast<Exact>(sum + extra) / static_cast<Exact>(ranks));
        for (const T value : {values.front(), values[500], values.back()}) {
          if (std::is_floating_point_v<T> && op == TFC_AVERAGE) {
            ASSERT_FLOAT_EQ(static_cast<float>(value), static_cast<float>(expected)) << "step " << step;
          } else {
            ASSERT_EQ(value, expected) << "step " << step;
          }
        }
      }
      const Joined joined = Join(communicator);
      EXPECT_EQ(joined.code, TFC_OK) << joined.message;
      EXPECT_EQ(joined.last, Longest());
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, JoinTest,
                         ::testing::Values(Case{"one", World(1, TFC_TRANSPORT_AUTO)},
                                           Case{"shm2", World(2, TFC_TRANSPORT_AUTO)},
                                           Case{"shm4", World(4, TFC_TRANSPORT_AUTO)},
                                           Case{"tcp2", World(2, TFC_TRANSPORT_TCP)},
                                           Case{"tcp4", World(4, TFC_TRANSPORT_TCP)},
                                           Case{"nodes2and1", World(3, TFC_TRANSPORT_AUTO, {"a", "b", "a"})}),
                         [](const auto& info) { return info.param.label; });

TEST_P(JoinTest, SumsOfDirectCallsAreOfTheRanksThatContribute) { CheckUnevenSteps<float>(TFC_FLOAT32, TFC_SUM, false); }
TEST_P(JoinTest, AveragesOfDirectCallsAreOfTheRanksThatContribute) {
  CheckUnevenSteps<float>(TFC_FLOAT32, TFC_AVERAGE, false);
}
TEST_P(JoinTest, AveragesByNameAreOfTheRanksThatContribute) { CheckUnevenSteps<float>(TFC_FLOAT32, TFC_AVERAGE, true); }
TEST_P(JoinTest, AveragesOfIntegersDivideOnce) { CheckUnevenSteps<int32_t>(TFC_INT32, TFC_AVERAGE, false); }
TEST_P(JoinTest, AveragesOfSmallIntegersDoNotWrap) { CheckUnevenSteps<uint8_t>(TFC_UINT8, TFC_AVERAGE, false); }
TEST_P(JoinTest, AveragesOfIntegersByNameDivideOnce) { CheckUnevenSteps<int64_t>(TFC_INT64, TFC_AVERAGE, true); }

TEST_P(JoinTest, PlansGoOnWithoutTheRanksThatHaveJoined) {
  EveryRank([&](int rank, tfc_communicator* communicator) {
    for (int round = 0; round < 3; ++round) {
      // The second plan is begun by some ranks while the others have joined already.
      PlanRun plan(communicator, "plan", TFC_SUM);
      PlanRun late(communicator, "late", TFC_SUM);
      for (int step = 0; step < Steps(rank); ++step) {
        std::vector<float> values(9, static_cast<float>(60 * (rank + 1)));
        ASSERT_EQ((step < 3 ? plan : late).Reduce(&values), TFC_OK);
        ASSERT_EQ(values, std::vector<float>(9, static_cast<float>(Expected(step).first))) << "step " << step;
      }
      const Joined joined = Join(communicator);
      ASSERT_EQ(joined.code, TFC_OK) << joined.message;
      ASSERT_EQ(joined.last, Longest());
    }
    // Those who have never begun the plan come to it now.
    PlanRun late(communicator, "late", TFC_SUM);
    std::vector<float> values(9, 1.0f);
    ASSERT_EQ(late.Reduce(&values), TFC_OK);
    EXPECT_EQ(values, std::vector<float>(9, static_cast<float>(size())));
  });
}

// In many rounds, as the decision on an operation may come just when the join looks whether any is pending.
TEST_P(JoinTest, ComesAfterWhatThisRankHasSubmitted) {
  EveryRank([&](int, tfc_communicator* communicator) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> values(5, 1.0f);
      const tfc_span span{values.data(), values.data(), static_cast<int64_t>(values.size())};
      tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "last");
      request.spans = &span;
      request.num_spans = 1;
      std::atomic<int> code{-1};
      const auto done = [](void* user, const tfc_error* error) {
        static_cast<std::atomic<int>*>(user)->store(error == nullptr ? TFC_OK : error->code);
      };
      ASSERT_EQ(tfc_submit(communicator, &request, done, &code, nullptr), TFC_OK);
      const Joined joined = Join(communicator);
      ASSERT_EQ(joined.code, TFC_OK) << joined.message;
      ASSERT_EQ(code, TFC_OK);
      ASSERT_EQ(values, std::vector<float>(5, static_cast<float>(size()))) << "round " << round;
    }
  });
}

TEST_P(JoinTest, AllRanksContributeAgainAfterwards) {
  EveryRank([&](int rank, tfc_communicator* communicator) {
    for (int round = 0; round < 20; ++round) {
      for (int step = 0; step < (rank + round) % size(); ++step) {
        std::vector<float> values(5, 1.0f);
        ASSERT_EQ(AllReduce(communicator, &values, TFC_AVERAGE).code, TFC_OK);
        ASSERT_EQ(values, std::vector<float>(5, 1.0f));
      }
      ASSERT_EQ(Join(communicator).code, TFC_OK);
      std::vector<float> values(5, 1.0f);
      ASSERT_EQ(AllReduce(communicator, &values).code, TFC_OK);
      ASSERT_EQ(values, std::vector<float>(5, static_cast<float>(size())));
      ASSERT_EQ(Reduce(communicator, &values, TFC_FLOAT32, TFC_MAX, true, "max").code, TFC_OK);
    }
  });
}

TEST_P(JoinTest, WhatZerosWouldSpoilIsRefusedByNameAndTheWorldLivesOn) {
  if (size() == 1) GTEST_SKIP() << "one rank: none can be missing";
  EveryRank([&](int rank, tfc_communicator* communicator) {
    if (rank != 1) {
      std::vector<float> values(5, 1.0f);
      CallResult result = Reduce(communicator, &values, TFC_FLOAT32, TFC_MIN, true, "least");
      EXPECT_EQ(result.code, TFC_MISMATCH);
      EXPECT_NE(result.message.find("rank 1 has joined"), std::string::npos) << result.message;
      EXPECT_EQ(SubmitAndWait(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM, "all")).code, TFC_MISMATCH);
      result = Reduce(communicator, &values, TFC_FLOAT32, TFC_SUM, true, "sum");
      EXPECT_EQ(result.code, TFC_OK) << result.message;
      EXPECT_EQ(values, std::vector<float>(5, static_cast<float>(size() - 1)));
    }
    EXPECT_EQ(Join(communicator).code, TFC_OK);
  });
}

TEST_P(JoinTest, WhatZerosWouldSpoilEndsTheWorldWhenCalledInOrder) {
  if (size() == 1) GTEST_SKIP() << "one rank: none can be missing";
  EveryRank([&](int rank, tfc_communicator* communicator) {
    // All are connected: the end of a world reaches those, too, that still connect. It may come before the barrier's
    // end.
    SubmitAndWait(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM, "all are here"));
    if (rank == 0) {
      EXPECT_EQ(Join(communicator).code, TFC_MISMATCH);
      return;
    }
    std::vector<float> values(5, 1.0f);
    const CallResult result = AllReduce(communicator, &values, TFC_PRODUCT);
    EXPECT_EQ(result.code, TFC_MISMATCH);
    EXPECT_NE(result.message.find("rank 0 has joined"), std::string::npos) << result.message;
  });
}

TEST_P(JoinTest, ARankThatStopsIsReportedToThoseThatHaveJoined) {
  if (size() == 1) GTEST_SKIP() << "there are no others";
  for (int stopper : {0, size() - 1}) {
    EveryRank([&](int rank, tfc_communicator* communicator) {
      if (rank == stopper) {
        std::vector<float> values(5, 1.0f);
        EXPECT_EQ(AllReduce(communicator, &values).code, TFC_OK);
        tfc_communicator_abort(communicator, "has had enough");
        return;
      }
      const Joined joined = Join(communicator);
      EXPECT_EQ(joined.code, TFC_ABORTED) << joined.message;
      EXPECT_EQ(joined.peer, stopper);
    });
  }
}

TEST_P(JoinTest, ARankThatLeavesIsMissed) {
  if (size() == 1) GTEST_SKIP() << "there are no others";
  EveryRank([&](int rank, tfc_communicator* communicator) {
    if (rank == size() - 1) return;  // shuts down
    EXPECT_EQ(Join(communicator).code, TFC_PEER_LOST);
  });
}

TEST_P(JoinTest, EndsByItsTimeoutAndNamesWhoHasNotJoined) {
  if (size() == 1) GTEST_SKIP() << "there are no others";
  std::atomic<int> ended{0};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    if (rank == size() - 1) {
      while (ended < size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // does nothing at all
      return;
    }
    const Joined joined = Join(communicator, 1);
    EXPECT_EQ(joined.code, TFC_DEADLINE_EXCEEDED) << joined.message;
    EXPECT_NE(joined.message.find("rank " + std::to_string(size() - 1)), std::string::npos) << joined.message;
    ++ended;
  });
}

TEST_P(JoinTest, ARankJoinsOnce) {
  if (size() == 1) GTEST_SKIP() << "joining ends at once";
  std::atomic<int> refused{0};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    const auto join = [&] {
      const int code = Join(communicator).code;
      if (code == TFC_FAILED_PRECONDITION) return ++refused, void();
      EXPECT_EQ(code, TFC_OK);
    };
    if (rank == 0) {
      std::thread other(join);
      join();
      return other.join();
    }
    while (refused == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // rank 0 stays joined until then
    join();
  });
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace tfc::testing
