// Whole worlds through the C interface: results, mismatches, failures, departures.
#include "testing/world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

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

std::vector<Case> Cases() {
  return {
      {"one", World(1, TFC_TRANSPORT_AUTO)},
      {"shm2", World(2, TFC_TRANSPORT_AUTO)},
      {"shm3", World(3, TFC_TRANSPORT_AUTO)},
      {"tcp2", World(2, TFC_TRANSPORT_TCP)},
      {"tcp3", World(3, TFC_TRANSPORT_TCP)},
      {"tcp5", World(5, TFC_TRANSPORT_TCP)},
      {"nodes2x2", World(4, TFC_TRANSPORT_AUTO, {"a", "a", "b", "b"})},
      {"nodes2and1", World(3, TFC_TRANSPORT_AUTO, {"a", "b", "a"})},
  };
}

class WorldTest : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().options.size; }
  // Runs `body` on every rank and expects that all of them connected.
  void EveryRank(const std::function<void(int, tfc_communicator*)>& body) {
    EXPECT_EQ(RunWorld(GetParam().options, body), std::vector<int>(static_cast<size_t>(size()), TFC_OK));
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, WorldTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.label; });

TEST_P(WorldTest, AllReduceOfManySizesIsExact) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{70001}, size_t{600000}}) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 97);
      const CallResult result = AllReduce(communicator, &values);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      const float factor = static_cast<float>(size() * (size() + 1) / 2);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(values[i], factor * static_cast<float>(i % 97)) << "element " << i << " of " << count;
    }
  });
}

TEST_P(WorldTest, AverageDividesExactly) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    std::vector<float> values(1000, static_cast<float>(rank * size()));
    const CallResult result = AllReduce(communicator, &values, TFC_AVERAGE);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    EXPECT_EQ(values, std::vector<float>(1000, static_cast<float>(size() * (size() - 1) / 2)));
  });
}

TEST_P(WorldTest, BroadcastFromEveryRoot) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    for (int root = 0; root < size(); ++root) {
      std::vector<int64_t> values(12345, rank == root ? 42 + root : -1);
      tfc_request request = MakeRequest(TFC_BROADCAST, TFC_INT64, TFC_SUM);
      request.root = root;
      const tfc_span span{values.data(), values.data(), 12345};
      request.spans = &span;
      request.num_spans = 1;
      const CallResult result = RunNow(communicator, request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      ASSERT_EQ(values, std::vector<int64_t>(12345, 42 + root));
    }
  });
}

struct LinkSeen {
  double latency_s = -1;
  double bandwidth = -1;
  bool operator==(const LinkSeen& other) const { return latency_s == other.latency_s && bandwidth == other.bandwidth; }
};

std::vector<LinkSeen> LinksOf(const WorldOptions& options) {
  std::vector<LinkSeen> seen(static_cast<size_t>(options.size));
  RunWorld(options, [&](int rank, tfc_communicator* communicator) {
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.completed, 0u);  // the probe is not an operation of the user
    seen[static_cast<size_t>(rank)] = LinkSeen{info.link_latency_s, info.link_bandwidth};
  });
  return seen;
}

TEST_P(WorldTest, AllRanksKnowTheSameLinkWhereTheyUseOne) {
  const WorldOptions& options = GetParam().options;
  const std::vector<LinkSeen> seen = LinksOf(options);
  const bool used = size() > 1 && (options.transport == TFC_TRANSPORT_TCP || !options.nodes.empty());
  for (const LinkSeen& link : seen) {
    EXPECT_EQ(link, seen[0]);
    EXPECT_EQ(link.latency_s > 0, used);
    EXPECT_EQ(link.bandwidth > 0, used);
  }
}

TEST(LinkProbe, RankZeroDecidesWhetherThereIsOne) {
  WorldOptions options = World(3, TFC_TRANSPORT_TCP);
  options.skip_link_probe = {1, 0, 0};
  EXPECT_EQ(LinksOf(options), std::vector<LinkSeen>(3, LinkSeen{0, 0}));
  options.skip_link_probe = {0, 1, 1};
  const std::vector<LinkSeen> seen = LinksOf(options);
  EXPECT_GT(seen[0].latency_s, 0);
  EXPECT_EQ(seen, std::vector<LinkSeen>(3, seen[0]));
}

struct Gathered {
  std::vector<int64_t> rows;
  std::vector<int32_t> data;
  size_t row_elements = 1;
};

void* AllocateGathered(void* user, const int64_t* rows, int32_t size) {
  auto* gathered = static_cast<Gathered*>(user);
  gathered->rows.assign(rows, rows + size);
  int64_t total = 0;
  for (int64_t count : gathered->rows) total += count;
  gathered->data.assign(static_cast<size_t>(total) * gathered->row_elements, -1);
  return gathered->data.data();
}

TEST_P(WorldTest, AllGatherWithRaggedRows) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    std::vector<int32_t> mine(static_cast<size_t>(rank) * 3, rank);
    const int64_t shape[2] = {rank, 3};
    const tfc_span span{mine.data(), nullptr, static_cast<int64_t>(mine.size())};
    Gathered gathered;
    gathered.row_elements = 3;
    tfc_request request = MakeRequest(TFC_ALLGATHER, TFC_INT32, TFC_SUM);
    request.spans = &span;
    request.num_spans = 1;
    request.shape = shape;
    request.ndim = 2;
    request.allocate = &AllocateGathered;
    request.allocate_user = &gathered;
    const CallResult result = RunNow(communicator, request);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    std::vector<int32_t> expected;
    for (int r = 0; r < size(); ++r) expected.insert(expected.end(), static_cast<size_t>(r) * 3, r);
    EXPECT_EQ(gathered.data, expected);
  });
}

TEST_P(WorldTest, AllToAllWithSplits) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    // Rank r sends r + 1 rows of the value 10 r + t to rank t.
    std::vector<int32_t> mine;
    const std::vector<int64_t> splits(static_cast<size_t>(size()), rank + 1);
    for (int to = 0; to < size(); ++to) mine.insert(mine.end(), static_cast<size_t>(rank) + 1, 10 * rank + to);
    const int64_t shape[1] = {static_cast<int64_t>(mine.size())};
    const tfc_span span{mine.data(), nullptr, shape[0]};
    Gathered gathered;
    tfc_request request = MakeRequest(TFC_ALLTOALL, TFC_INT32, TFC_SUM);
    request.spans = &span;
    request.num_spans = 1;
    request.shape = shape;
    request.ndim = 1;
    request.splits = splits.data();
    request.allocate = &AllocateGathered;
    request.allocate_user = &gathered;
    const CallResult result = RunNow(communicator, request);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    std::vector<int32_t> expected;
    for (int from = 0; from < size(); ++from)
      expected.insert(expected.end(), static_cast<size_t>(from) + 1, 10 * from + rank);
    EXPECT_EQ(gathered.data, expected);
  });
}

TEST_P(WorldTest, ReduceScatterOfUnevenRows) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    const int64_t rows = size() * 2 + 1;  // the first rank gets one more
    std::vector<float> input(static_cast<size_t>(rows) * 2);
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i + static_cast<size_t>(rank));
    const int64_t mine = 2 + (rank == 0 ? 1 : 0);
    std::vector<float> output(static_cast<size_t>(mine) * 2, -1);
    const int64_t shape[2] = {rows, 2};
    const tfc_span span{input.data(), output.data(), static_cast<int64_t>(input.size())};
    tfc_request request = MakeRequest(TFC_REDUCESCATTER, TFC_FLOAT32, TFC_SUM);
    request.spans = &span;
    request.num_spans = 1;
    request.shape = shape;
    request.ndim = 2;
    const CallResult result = RunNow(communicator, request);
    ASSERT_EQ(result.code, TFC_OK) << result.message;
    const size_t first = rank == 0 ? 0 : static_cast<size_t>(rank * 2 + 1) * 2;
    for (size_t i = 0; i < output.size(); ++i)
      ASSERT_EQ(output[i], static_cast<float>(size()) * static_cast<float>(first + i) +
                               static_cast<float>(size() * (size() - 1) / 2));
  });
}

TEST_P(WorldTest, BarrierAndManyOperations) {
  EveryRank([this](int, tfc_communicator* communicator) {
    for (int i = 0; i < 200; ++i) {
      std::vector<float> values(static_cast<size_t>(i % 5), 1);
      ASSERT_EQ(AllReduce(communicator, &values).code, TFC_OK);
      ASSERT_EQ(values, std::vector<float>(values.size(), static_cast<float>(size())));
      if (i % 50 != 0) continue;
      ASSERT_EQ(RunNow(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM)).code, TFC_OK);
    }
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.completed, 204u);
    EXPECT_EQ(info.pending, 0u);
  });
}

// ---- negotiated operations ----

TEST_P(WorldTest, SubmittedInDifferentOrders) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    constexpr int kNames = 6;
    std::vector<std::thread> threads;
    for (int i = 0; i < kNames; ++i) {
      const int which = rank % 2 == 0 ? i : kNames - 1 - i;
      threads.emplace_back([this, which, communicator] {
        const std::string name = "tensor " + std::to_string(which);
        std::vector<float> values(static_cast<size_t>(which) * 1000 + 1, static_cast<float>(which));
        tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, name.c_str());
        const tfc_span span{values.data(), values.data(), static_cast<int64_t>(values.size())};
        request.spans = &span;
        request.num_spans = 1;
        const CallResult result = SubmitAndWait(communicator, request);
        EXPECT_EQ(result.code, TFC_OK) << result.message;
        EXPECT_EQ(values.back(), static_cast<float>(which * size()));
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(WorldTest, SubmittedMismatchIsReportedToAllAndTheCommunicatorLives) {
  if (size() == 1) GTEST_SKIP() << "a world of one cannot disagree";
  EveryRank([this](int rank, tfc_communicator* communicator) {
    std::vector<float> values(rank == 1 ? 4 : 3, 1);
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "w");
    const tfc_span span{values.data(), values.data(), static_cast<int64_t>(values.size())};
    request.spans = &span;
    request.num_spans = 1;
    const CallResult result = SubmitAndWait(communicator, request);
    EXPECT_EQ(result.code, TFC_MISMATCH);
    EXPECT_NE(result.message.find("rank 1: allreduce 'w' float32[4 elements]"), std::string::npos) << result.message;
    std::vector<float> again(2, 1);
    EXPECT_EQ(AllReduce(communicator, &again).code, TFC_OK);
  });
}

// ---- what goes wrong ----

TEST_P(WorldTest, DifferentCallsAreAMismatchOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "a world of one cannot disagree";
  EveryRank([this](int rank, tfc_communicator* communicator) {
    std::vector<float> values(rank == size() - 1 ? 8 : 5, 1);
    const CallResult result = AllReduce(communicator, &values);
    EXPECT_EQ(result.code, TFC_MISMATCH) << result.message;
    EXPECT_NE(result.message.find("float32[8 elements]"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("float32[5 elements]"), std::string::npos) << result.message;
    EXPECT_EQ(AllReduce(communicator, &values).code, TFC_MISMATCH) << "a dead communicator stays dead";
  });
}

TEST_P(WorldTest, AnAbortReachesEveryRank) {
  if (size() == 1) GTEST_SKIP() << "one rank: no other to notify";
  EveryRank([this](int rank, tfc_communicator* communicator) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others are to be inside the operation
      tfc_communicator_abort(communicator, "ValueError: no such file");
      std::vector<float> values(3, 1);
      EXPECT_EQ(AllReduce(communicator, &values).code, TFC_CANCELLED);
      return;
    }
    std::vector<float> values(100000, 1);
    const CallResult result = AllReduce(communicator, &values);
    EXPECT_EQ(result.code, TFC_ABORTED) << result.message;
    EXPECT_EQ(result.peer, 1);
    EXPECT_NE(result.message.find("ValueError: no such file"), std::string::npos) << result.message;
  });
}

TEST_P(WorldTest, ALateRankIsNamedAtTheDeadline) {
  if (size() == 1) GTEST_SKIP() << "no other rank to wait for";
  std::atomic<int> waiting{size() - 1};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    if (rank == 1) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until all have given up
      return;
    }
    std::vector<float> values(10, 1);
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "slow");
    const tfc_span span{values.data(), values.data(), 10};
    request.spans = &span;
    request.num_spans = 1;
    request.timeout_s = 1;
    const CallResult result = RunNow(communicator, request);
    EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
    EXPECT_NE(result.message.find("allreduce 'slow' timed out"), std::string::npos) << result.message;
    EXPECT_EQ(result.peer, 1) << result.message;
    EXPECT_NE(result.message.find("rank 1 has not called it"), std::string::npos) << result.message;
    --waiting;
  });
}

// The messages of all ranks.
struct Messages {
  static void Add(void* user, int32_t, const char* message) {
    auto* self = static_cast<Messages*>(user);
    std::lock_guard<std::mutex> lock(self->mutex);
    self->text += std::string(message) + "\n";
    self->came.notify_all();
  }
  bool Await(const std::string& part) {
    std::unique_lock<std::mutex> lock(mutex);
    return came.wait_for(lock, std::chrono::seconds(20), [&] { return text.find(part) != std::string::npos; });
  }

  std::mutex mutex;
  std::condition_variable came;
  std::string text;
};

TEST_P(WorldTest, ALateRankIsNamedInTheWarningAndNothingFails) {
  if (size() == 1) GTEST_SKIP() << "no other rank to wait for";
  for (const int late : {0, size() - 1}) {
    Messages messages;
    WorldOptions options = GetParam().options;
    options.op_timeout_s = 60;
    options.stall_warning_s = 0.2;
    options.log = &Messages::Add;
    options.log_user = &messages;
    RunWorld(options, [&](int rank, tfc_communicator* communicator) {
      const std::string named = "s; rank " + std::to_string(late) + " has not called it";
      if (rank == late) EXPECT_TRUE(messages.Await(named)) << messages.text;
      std::vector<float> values(10, 1);
      EXPECT_EQ(AllReduce(communicator, &values).code, TFC_OK);
    });
  }
}

TEST_P(WorldTest, WhatARankWaitsInInsteadIsNamedAtTheDeadline) {
  if (size() == 1) GTEST_SKIP() << "no other rank to wait for";
  EveryRank([&](int rank, tfc_communicator* communicator) {
    std::vector<float> values(10, 1);
    if (rank == 1) {  // has run out of steps and averages its metrics
      tfc_request metrics = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "metrics");
      const tfc_span span{values.data(), values.data(), 10};
      metrics.spans = &span;
      metrics.num_spans = 1;
      EXPECT_EQ(SubmitAndWait(communicator, metrics).code, TFC_DEADLINE_EXCEEDED);
      return;
    }
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "gradients");
    const tfc_span span{values.data(), values.data(), 10};
    request.spans = &span;
    request.num_spans = 1;
    request.timeout_s = 1;
    const CallResult result = RunNow(communicator, request);
    EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
    EXPECT_NE(result.message.find("rank 1 waits in allreduce 'metrics'"), std::string::npos) << result.message;
  });
}

TEST_P(WorldTest, ALateRankIsNamedForSubmittedOperations) {
  if (size() == 1) GTEST_SKIP() << "no other rank to wait for";
  std::atomic<int> waiting{size() - 1};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    if (rank == 1) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until all have given up
      return;
    }
    std::vector<float> values(10, 1);
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "slow");
    const tfc_span span{values.data(), values.data(), 10};
    request.spans = &span;
    request.num_spans = 1;
    request.timeout_s = 1;
    const CallResult result = SubmitAndWait(communicator, request);
    EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
    EXPECT_EQ(result.peer, 1) << result.message;
    EXPECT_NE(result.message.find("rank 1 did not call it"), std::string::npos) << result.message;
    --waiting;
  });
}

TEST_P(WorldTest, ARankThatLeavesEarlyIsNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank: no other to leave";
  EveryRank([this](int rank, tfc_communicator* communicator) {
    std::vector<float> values(10, 1);
    ASSERT_EQ(AllReduce(communicator, &values).code, TFC_OK);
    if (rank == size() - 1) return;  // shuts down
    const auto begin = std::chrono::steady_clock::now();
    const CallResult result = AllReduce(communicator, &values);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
    EXPECT_EQ(result.peer, size() - 1);
    EXPECT_NE(result.message.find("left after 1 operations"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("has failed"), std::string::npos) << result.message;  // as sys.exit(3) would have it
    EXPECT_NE(result.message.find("shard"), std::string::npos) << result.message;
  });
}

// Whether the news that it has left comes before the call or while the call waits, the world has ended by it.
TEST_P(WorldTest, WhatNeedsARankThatHasLeftEndsTheWorld) {
  if (size() == 1) GTEST_SKIP() << "one rank: no other to leave";
  EveryRank([this](int rank, tfc_communicator* communicator) {
    if (rank == size() - 1) return;                               // shuts down
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // by then the news has come, as a rule
    std::vector<float> values(10, 1);
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "named");
    const tfc_span span{values.data(), values.data(), 10};
    request.spans = &span;
    request.num_spans = 1;
    const CallResult result = SubmitAndWait(communicator, request);
    EXPECT_EQ(result.code, TFC_PEER_LOST) << result.message;
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.broken, 1);
  });
}

TEST_P(WorldTest, BadArgumentsAreRefusedWithoutHarm) {
  EveryRank([this](int, tfc_communicator* communicator) {
    tfc_request request = MakeRequest(TFC_BROADCAST, TFC_FLOAT32, TFC_SUM);
    request.root = size();
    EXPECT_EQ(RunNow(communicator, request).code, TFC_INVALID_ARGUMENT);
    request = MakeRequest(99, TFC_FLOAT32, TFC_SUM);
    EXPECT_EQ(RunNow(communicator, request).code, TFC_INVALID_ARGUMENT);
    request = MakeRequest(TFC_ALLREDUCE, 77, TFC_SUM);
    EXPECT_EQ(RunNow(communicator, request).code, TFC_INVALID_ARGUMENT);
    std::vector<float> values(2, 1);
    EXPECT_EQ(AllReduce(communicator, &values).code, TFC_OK);
  });
}

// ---- bucket plans ----

struct PlanRun {
  std::mutex mutex;
  std::condition_variable changed;
  int done = 0;
  std::vector<int> codes;
};

void OnBucket(void* user, const tfc_error* error) {
  auto* run = static_cast<PlanRun*>(user);
  std::lock_guard<std::mutex> lock(run->mutex);
  ++run->done;
  run->codes.push_back(error == nullptr ? TFC_OK : error->code);
  run->changed.notify_all();
}

tfc_plan* Acquire(tfc_communicator* communicator, const char* name, int buckets,
                  const char* signature = "a float32[3]") {
  tfc_plan_options options{};
  options.struct_size = sizeof(options);
  options.name = name;
  options.signature = signature;
  options.num_buckets = buckets;
  options.op = TFC_SUM;
  options.prescale = 1;
  options.postscale = 1;
  tfc_plan* plan = nullptr;
  EXPECT_EQ(tfc_plan_acquire(communicator, &options, &plan, nullptr), TFC_OK);
  return plan;
}

int StartBucket(tfc_plan* plan, int bucket, std::vector<float>* values, PlanRun* run) {
  const tfc_span span{values->data(), values->data(), static_cast<int64_t>(values->size())};
  return tfc_plan_start(plan, bucket, TFC_FLOAT32, &span, 1, &OnBucket, run, nullptr);
}

void WaitFor(PlanRun* run, int count) {
  std::unique_lock<std::mutex> lock(run->mutex);
  ASSERT_TRUE(run->changed.wait_for(lock, std::chrono::seconds(20), [&] { return run->done >= count; }));
}

TEST_P(WorldTest, BucketsStartedOutOfOrderWaitTheirTurn) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    tfc_plan* plan = Acquire(communicator, "step", 3);
    for (int step = 0; step < 20; ++step) {
      PlanRun run;
      std::vector<std::vector<float>> values(3, std::vector<float>(1000, static_cast<float>(step)));
      for (int i = 0; i < 3; ++i) {
        const int bucket = rank % 2 == 0 ? i : 2 - i;
        ASSERT_EQ(StartBucket(plan, bucket, &values[static_cast<size_t>(bucket)], &run), TFC_OK);
      }
      WaitFor(&run, 3);
      ASSERT_EQ(run.codes, std::vector<int>(3, TFC_OK));
      for (const auto& bucket : values) ASSERT_EQ(bucket, std::vector<float>(1000, static_cast<float>(step * size())));
    }
    tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, AllBucketsOfAPlanRunInOneCall) {
  EveryRank([this](int, tfc_communicator* communicator) {
    tfc_plan* plan = Acquire(communicator, "step", 2);
    for (int step = 0; step < 20; ++step) {
      std::vector<float> a(70000, 1), b(3, 2);
      std::vector<double> c(5, static_cast<double>(step));
      const tfc_span floats[] = {{a.data(), a.data(), 70000}, {b.data(), b.data(), 3}};
      const tfc_span doubles{c.data(), c.data(), 5};
      const tfc_bucket buckets[] = {{floats, 2, TFC_FLOAT32}, {&doubles, 1, TFC_FLOAT64}};
      ASSERT_EQ(tfc_plan_run(plan, buckets, 2, nullptr), TFC_OK);
      ASSERT_EQ(a, std::vector<float>(70000, static_cast<float>(size())));
      ASSERT_EQ(b, std::vector<float>(3, static_cast<float>(2 * size())));
      ASSERT_EQ(c, std::vector<double>(5, static_cast<double>(step * size())));
    }
    const tfc_bucket none{nullptr, 0, TFC_FLOAT32};
    EXPECT_EQ(tfc_plan_run(plan, &none, 1, nullptr), TFC_INVALID_ARGUMENT);
    tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, ALostRankEndsAPlanThatRuns) {
  if (size() == 1) GTEST_SKIP() << "there is no other rank";
  EveryRank([this](int rank, tfc_communicator* communicator) {
    if (rank == size() - 1) return tfc_communicator_abort(communicator, "the data is rotten");
    tfc_plan* plan = Acquire(communicator, "step", 2);
    std::vector<float> a(70000, 1), b(3, 2);
    const tfc_span spans[] = {{a.data(), a.data(), 70000}, {b.data(), b.data(), 3}};
    const tfc_bucket buckets[] = {{&spans[0], 1, TFC_FLOAT32}, {&spans[1], 1, TFC_FLOAT32}};
    tfc_error error{};
    error.struct_size = sizeof(error);
    EXPECT_EQ(tfc_plan_run(plan, buckets, 2, &error), TFC_ABORTED);
    EXPECT_NE(std::string(error.message).find("the data is rotten"), std::string::npos) << error.message;
    tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, TwoPlansReadyInDifferentOrderDoNotDeadlock) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    tfc_plan* plans[2] = {Acquire(communicator, "p", 1), Acquire(communicator, "q", 1)};
    for (int step = 0; step < 10; ++step) {
      const int first = (rank + step) % 2;
      PlanRun first_run, second_run;
      std::vector<float> a(200000, 1), b(200000, 2);
      // Rank by rank the other plan comes first, and the second one starts while the first is waiting.
      ASSERT_EQ(StartBucket(plans[first], 0, first == 0 ? &a : &b, &first_run), TFC_OK);
      ASSERT_EQ(StartBucket(plans[1 - first], 0, first == 0 ? &b : &a, &second_run), TFC_OK);
      WaitFor(&first_run, 1);
      WaitFor(&second_run, 1);
      ASSERT_EQ(a.back(), static_cast<float>(size()));
      ASSERT_EQ(b.back(), static_cast<float>(2 * size()));
    }
    tfc_plan_release(plans[0]);
    tfc_plan_release(plans[1]);
  });
}

void RunOnce(tfc_plan* plan, int size) {
  PlanRun run;
  std::vector<float> a(5000, 1), b(10, 2);
  ASSERT_EQ(StartBucket(plan, 0, &a, &run), TFC_OK);
  ASSERT_EQ(StartBucket(plan, 1, &b, &run), TFC_OK);
  WaitFor(&run, 2);
  ASSERT_EQ(run.codes, std::vector<int>(2, TFC_OK));
  ASSERT_EQ(a.back(), static_cast<float>(size));
  ASSERT_EQ(b.back(), static_cast<float>(2 * size));
}

uint32_t HighestChannel(tfc_communicator* communicator) {
  uint32_t highest = 0;
  const auto look = [](void* user, const tfc_timeline_event* event) {
    auto* seen = static_cast<uint32_t*>(user);
    *seen = std::max(*seen, event->channel);
  };
  EXPECT_EQ(tfc_timeline_stop(communicator, look, &highest, nullptr, nullptr), TFC_OK);
  return highest;
}

TEST_P(WorldTest, ChannelsOfForgottenPlansAreUsedAgain) {
  EveryRank([this](int, tfc_communicator* communicator) {
    ASSERT_EQ(tfc_timeline_start(communicator, 10000, nullptr), TFC_OK);
    for (int number = 0; number < 200; ++number) {
      const std::string name = "step#" + std::to_string(number);
      tfc_plan* plan = Acquire(communicator, name.c_str(), 2);
      for (int step = 0; step < 3; ++step) RunOnce(plan, size());
      EXPECT_EQ(tfc_plan_forget(communicator, name.c_str(), nullptr), TFC_OK);
      tfc_plan_release(plan);
    }
    EXPECT_LT(HighestChannel(communicator), 10u);
  });
}

// Forgetting is local, and may come at any time and again and again.
TEST_P(WorldTest, RanksForgetPlansWhenTheyLike) {
  EveryRank([this](int rank, tfc_communicator* communicator) {
    tfc_plan* plans[3] = {Acquire(communicator, "a", 2), Acquire(communicator, "b", 2), Acquire(communicator, "c", 2)};
    const char* names[3] = {"a", "b", "c"};
    for (int step = 0; step < 300; ++step) {
      RunOnce(plans[step % 3], size());
      if (step % (rank + 2) == 0) {
        EXPECT_EQ(tfc_plan_forget(communicator, names[step * 7 % 3], nullptr), TFC_OK);
        EXPECT_EQ(tfc_plan_forget(communicator, "unknown", nullptr), TFC_OK);
      }
    }
    for (tfc_plan* plan : plans) tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, APlanThatIsForgottenInTheMiddleOfAStepKeepsItsTurn) {
  EveryRank([this](int, tfc_communicator* communicator) {
    tfc_plan* plan = Acquire(communicator, "step", 2);
    PlanRun run;
    std::vector<float> a(5000, 1), b(10, 2);
    ASSERT_EQ(StartBucket(plan, 0, &a, &run), TFC_OK);
    WaitFor(&run, 1);
    EXPECT_EQ(tfc_plan_forget(communicator, "step", nullptr), TFC_OK);
    tfc_plan_release(plan);
    plan = Acquire(communicator, "step", 2);
    ASSERT_EQ(StartBucket(plan, 1, &b, &run), TFC_OK);
    WaitFor(&run, 2);
    ASSERT_EQ(run.codes, std::vector<int>(2, TFC_OK));
    ASSERT_EQ(b.back(), static_cast<float>(2 * size()));
    RunOnce(plan, size());
    tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, AForgottenPlanIsNotTakenForAnotherOneOfItsName) {
  if (size() == 1) GTEST_SKIP() << "a world of one keeps no plans";
  EveryRank([this](int, tfc_communicator* communicator) {
    tfc_plan* old = Acquire(communicator, "step", 300);
    EXPECT_EQ(tfc_plan_forget(communicator, "step", nullptr), TFC_OK);
    tfc_plan* plan = Acquire(communicator, "step", 2);
    PlanRun run;
    std::vector<float> values(3, 1);
    EXPECT_EQ(StartBucket(old, 299, &values, &run), TFC_INVALID_ARGUMENT);
    RunOnce(plan, size());
    tfc_plan_release(old);
    tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, MorePlansThanChannelsRunAllTheSame) {
  EveryRank([this](int, tfc_communicator* communicator) {
    std::vector<tfc_plan*> plans;
    for (int number = 0; number < 70; ++number)
      plans.push_back(Acquire(communicator, ("step#" + std::to_string(number)).c_str(), 2));
    for (int step = 0; step < 2; ++step)
      for (tfc_plan* plan : plans) RunOnce(plan, size());
    for (tfc_plan* plan : plans) tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, PlansThatDifferAreAMismatchThatNamesTheFirstDifference) {
  if (size() == 1) GTEST_SKIP() << "a world of one cannot disagree";
  EveryRank([](int rank, tfc_communicator* communicator) {
    tfc_plan* plan =
        Acquire(communicator, "step", 1, rank == 1 ? "a float32[3]\nb float32[9]" : "a float32[3]\nb float32[8]");
    PlanRun run;
    std::vector<float> values(3, 1);
    ASSERT_EQ(StartBucket(plan, 0, &values, &run), TFC_OK);
    WaitFor(&run, 1);
    EXPECT_EQ(run.codes, std::vector<int>{TFC_MISMATCH});
    tfc_error error{};
    error.struct_size = sizeof(error);
    const CallResult later = AllReduce(communicator, &values);
    EXPECT_NE(later.message.find("rank 1: line 2: b float32[9]"), std::string::npos) << later.message;
    tfc_plan_release(plan);
  });
}

TEST_P(WorldTest, ShutdownWithBucketsInFlightCancelsThem) {
  if (size() == 1) GTEST_SKIP() << "nothing waits in a world of one";
  std::atomic<bool> cancelled{false};
  EveryRank([&](int rank, tfc_communicator* communicator) {
    tfc_plan* plan = Acquire(communicator, "step", 2);
    PlanRun run;
    std::vector<float> values(10, 1);
    while (rank != 0 && !cancelled)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they are to leave later
    if (rank == 0) {
      ASSERT_EQ(StartBucket(plan, 1, &values, &run), TFC_OK);  // bucket 0 never comes
      tfc_communicator_shutdown(communicator, 1, nullptr);
      WaitFor(&run, 1);
      EXPECT_EQ(run.codes, std::vector<int>{TFC_CANCELLED});
      cancelled = true;
    }
    tfc_plan_release(plan);
  });
}

}  // namespace
}  // namespace tfc::testing
