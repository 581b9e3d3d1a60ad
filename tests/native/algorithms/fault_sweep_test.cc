// Fails transport call n of one rank, for every n of every collective: all ranks must end in time,
// and none may report success with a wrong result.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "algorithms/values.h"
#include "algorithms/worlds.h"
#include "collectives/algorithms/link_probe.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/transport_algorithms.h"
#include "testing/faulty_transport.h"

namespace tfc {
namespace {

constexpr int kSize = 3;
constexpr double kPatience = 60.0;      // seconds: an operation's deadline where nothing is lost silently
constexpr double kShortTimeout = 0.05;  // seconds: the deadline where a message is lost silently

struct Ending {
  Status status;
  bool right = false;
};

// Runs one collective on one rank and compares its result.
using Collective = std::function<Ending(const TransportContext&)>;

struct Case {
  const char* name;
  Collective run;
  bool large = false;  // a sweep of megabytes: every call fails once, in turns with and without an abort sent
};

Reduction SumOfFloats() { return Reduction{Dtype::kFloat32, Op::kSum, 1.0, 1.0, 1}; }

// What the ranks add up, and the sum. A sweep runs a collective hundreds of times, so these are made once.
struct Summands {
  std::vector<Bytes> inputs;  // by rank
  Bytes sum;

  static const Summands& Of(size_t count) {
    static std::mutex mutex;
    static std::map<size_t, Summands> known;
    const std::lock_guard<std::mutex> lock(mutex);
    Summands& found = known[count];
    while (found.inputs.size() < kSize)
      found.inputs.push_back(
          InputBytes(Dtype::kFloat32, Op::kSum, kSize, static_cast<int>(found.inputs.size()), count));
    if (found.sum.empty()) found.sum = ExpectedBytes(Dtype::kFloat32, Op::kSum, kSize, count);
    return found;
  }
};

template <typename Function>
Collective AllReduceOf(Function all_reduce, size_t count) {
  return [=](const TransportContext& context) {
    const Summands& summands = Summands::Of(count);
    const Bytes& input = summands.inputs[static_cast<size_t>(context.members.index)];
    Bytes output(input.size());
    Ending ending;
    ending.status =
        all_reduce(context, SumOfFloats(), {{input.data(), input.size()}}, {{output.data(), output.size()}});
    ending.right = std::memcmp(output.data(), summands.sum.data(), output.size()) == 0;
    return ending;
  };
}

template <typename Function>
Collective ReduceScatterOf(Function reduce_scatter, size_t count) {
  return [=](const TransportContext& context) {
    const std::vector<size_t> offsets = EvenOffsets(count * 4, 4, kSize);
    const auto index = static_cast<size_t>(context.members.index);
    const Summands& summands = Summands::Of(count);
    const Bytes& input = summands.inputs[index];
    Bytes output(offsets[index + 1] - offsets[index]);
    Ending ending;
    ending.status = reduce_scatter(context, SumOfFloats(), {{input.data(), input.size()}}, offsets,
                                   {{output.data(), output.size()}});
    ending.right = std::memcmp(output.data(), summands.sum.data() + offsets[index], output.size()) == 0;
    return ending;
  };
}

// Rank r's byte i of what it sends to everybody.
std::byte Letter(int rank, size_t i) { return static_cast<std::byte>(static_cast<size_t>(rank) * 61 + i % 59 + 1); }

Collective AllGatherOf(size_t bytes) {
  return [=](const TransportContext& context) {
    const std::vector<size_t> offsets = EvenOffsets(bytes * kSize, bytes, kSize);
    Bytes input(bytes), output(bytes * kSize), expected(bytes * kSize);
    for (size_t i = 0; i < bytes; ++i) input[i] = Letter(context.members.index, i);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = Letter(static_cast<int>(i / bytes), i % bytes);
    Ending ending;
    ending.status = RingAllGather(context, {{input.data(), bytes}}, offsets, {{output.data(), output.size()}});
    ending.right = output == expected;
    return ending;
  };
}

Collective BroadcastOf(size_t bytes) {
  return [=](const TransportContext& context) {
    Bytes data(bytes), expected(bytes);
    for (size_t i = 0; i < bytes; ++i) expected[i] = Letter(1, i);
    if (context.members.index == 1) data = expected;
    Ending ending;
    ending.status = BroadcastFrom(context, 1, {{data.data(), bytes}}, {{data.data(), bytes}});
    ending.right = data == expected;
    return ending;
  };
}

Collective AllToAllOf(size_t bytes) {
  return [=](const TransportContext& context) {
    const std::vector<size_t> offsets = EvenOffsets(bytes * kSize, bytes, kSize);
    Bytes input(bytes * kSize), output(bytes * kSize), expected(bytes * kSize);
    for (size_t i = 0; i < input.size(); ++i) input[i] = Letter(context.members.index, i / bytes);
    for (size_t i = 0; i < input.size(); ++i)
      expected[i] = Letter(static_cast<int>(i / bytes), static_cast<size_t>(context.members.index));
    Ending ending;
    ending.status =
        AllToAll(context, {{input.data(), input.size()}}, offsets, {{output.data(), output.size()}}, offsets);
    ending.right = output == expected;
    return ending;
  };
}

// The measured numbers are right if they can be numbers of a link.
Collective ProbeOf() {
  return [](const TransportContext& context) {
    Ending ending;
    const auto measured = MeasureLink(context);
    if (!measured.ok()) return Ending{measured.status(), false};
    TransportContext rest{context.transport, context.members,   context.deadline, context.channel,
                          context.sequence,  context.signature, kProbeSteps};
    const auto agreed = AgreeOnLink(rest, measured.value());
    ending.status = agreed.status();
    ending.right = agreed.ok() && agreed.value().measured && agreed.value().latency_s >= measured.value().latency_s &&
                   agreed.value().seconds_per_byte >= measured.value().seconds_per_byte;
    return ending;
  };
}

Ending RunBarrier(const TransportContext& context) { return Ending{DisseminationBarrier(context), true}; }

struct Outcome {
  std::vector<Ending> runs;
  int64_t calls = 0;  // of the rank with the fault
  double seconds = 0;
};

// What the communicator does at the first error: it stops all other ranks.
void TellTheOthers(const std::vector<std::unique_ptr<Transport>>& transports, int failed) {
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == failed) continue;
    transports[static_cast<size_t>(rank)]->Interrupt(
        Status(Code::kAborted, "rank " + std::to_string(failed) + " failed", failed));
  }
}

Outcome RunWithFault(const Collective& collective, int victim, const Fault& fault, double timeout_s, bool tell) {
  MemoryHub hub(MemoryHubOptions{kSize, 0});
  std::vector<std::unique_ptr<Transport>> transports = hub.MakeAll();
  Outcome outcome;
  outcome.runs.resize(kSize);
  const auto start = Deadline::Clock::now();
  OnEveryRank(kSize, [&](int rank) {
    FaultyTransport faulty(*transports[static_cast<size_t>(rank)], rank == victim ? fault : Fault());
    const Members members = AllMembers(kSize, rank);
    Ending& run = outcome.runs[static_cast<size_t>(rank)];
    run = collective(TransportContext{faulty, members, Deadline::After(timeout_s), 1, 5, 9, 0});
    if (rank == victim) outcome.calls = faulty.calls();
    if (run.status.ok()) return;
    if (tell) {
      TellTheOthers(transports, rank);
    } else {
      hub.Close(rank);
    }
  });
  outcome.seconds = std::chrono::duration<double>(Deadline::Clock::now() - start).count();
  return outcome;
}

class FaultSweep : public ::testing::TestWithParam<Case> {};

TEST_P(FaultSweep, EveryRankEndsWhateverCallFails) {
  for (int victim = 0; victim < kSize; ++victim) {
    const Outcome clean = RunWithFault(GetParam().run, victim, Fault(), kPatience, true);
    for (const Ending& run : clean.runs) ASSERT_TRUE(run.status.ok() && run.right) << run.status.message();
    ASSERT_GT(clean.calls, 0);
    for (int64_t call = 0; call < clean.calls; ++call) {
      for (bool tell : {true, false}) {  // the others are notified, or see the connection end
        if (GetParam().large && tell != ((call + victim) % 2 == 0)) continue;
        const Fault fault{Fault::Kind::kFail, call, Status(Code::kIo, "injected"), 0};
        const Outcome outcome = RunWithFault(GetParam().run, victim, fault, kPatience, tell);
        const std::string where = "rank " + std::to_string(victim) + " call " + std::to_string(call);
        ASSERT_EQ(outcome.runs[static_cast<size_t>(victim)].status.code(), Code::kIo) << where;
        ASSERT_LT(outcome.seconds, kPatience / 2) << where;
        for (const Ending& run : outcome.runs) ASSERT_TRUE(run.right || !run.status.ok()) << where;
      }
    }
  }
}

TEST_P(FaultSweep, ALostMessageEndsAtTheDeadline) {
  const Outcome clean = RunWithFault(GetParam().run, 1, Fault(), kPatience, true);
  for (int64_t call = 0; call < clean.calls; ++call) {
    const Outcome outcome =
        RunWithFault(GetParam().run, 1, Fault{Fault::Kind::kDrop, call, Status(), 0}, kShortTimeout, true);
    ASSERT_LT(outcome.seconds, kPatience / 2) << call;
    for (const Ending& run : outcome.runs) ASSERT_TRUE(run.right || !run.status.ok()) << call;
  }
}

TEST_P(FaultSweep, ErrorsNameTheStep) {
  const Fault fault{Fault::Kind::kFail, 0, Status(Code::kPeerLost, "injected", 2), 0};
  const Outcome outcome = RunWithFault(GetParam().run, 0, fault, kPatience, true);
  EXPECT_EQ(outcome.runs[0].status.code(), Code::kPeerLost);
  EXPECT_EQ(outcome.runs[0].status.peer(), 2);
  EXPECT_NE(outcome.runs[0].status.message().find(", step "), std::string::npos) << outcome.runs[0].status.message();
  EXPECT_NE(outcome.runs[0].status.message().find("injected"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Collectives, FaultSweep,
                         ::testing::Values(Case{"ring_small", AllReduceOf(RingAllReduce, 17)},
                                           Case{"ring_segments", AllReduceOf(RingAllReduce, 60001)},
                                           Case{"doubling", AllReduceOf(RecursiveDoublingAllReduce, 17)},
                                           Case{"doubling_blocks", AllReduceOf(RecursiveDoublingAllReduce, 150001)},
                                           Case{"halving", AllReduceOf(HalvingDoublingAllReduce, 17)},
                                           Case{"halving_blocks", AllReduceOf(HalvingDoublingAllReduce, 1100003), true},
                                           Case{"direct", AllReduceOf(DirectAllReduce, 17)},
                                           Case{"direct_segments", AllReduceOf(DirectAllReduce, 150001)},
                                           Case{"probe", ProbeOf()},
                                           Case{"reducescatter", ReduceScatterOf(RingReduceScatter, 60001)},
                                           Case{"direct_reducescatter", ReduceScatterOf(DirectReduceScatter, 60001)},
                                           Case{"allgather", AllGatherOf(70001)},
                                           Case{"broadcast_tree", BroadcastOf(1001)},
                                           Case{"broadcast_chain", BroadcastOf(1300001), true},
                                           Case{"alltoall", AllToAllOf(1001)}, Case{"barrier", RunBarrier}),
                         [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tfc
