// The error on every rank when the ranks of an arena disagree, are late or die.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "algorithms/arena_worlds.h"
#include "algorithms/values.h"
#include "collectives/algorithms/arena_algorithms.h"

namespace tfc {
namespace {

using Clock = Deadline::Clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Status SumOf(ArenaRank& self, size_t count, uint64_t signature = 7, double timeout = 60.0) {
  const Bytes input = InputBytes(Dtype::kFloat32, Op::kSum, self.size(), self.rank(), count);
  Bytes output(input.size());
  return ArenaAllReduce(self.Next(signature, timeout), Reduction(), {{input.data(), input.size()}},
                        {{output.data(), output.size()}});
}

TEST(ArenaMismatch, IsSeenByAllRanks) {
  for (int size : {2, 3, 5}) {
    for (size_t count : {1, 100000}) {
      OnEveryArenaRank(ArenaWorld{size, 0, 0, false}, [&](ArenaRank& self) {
        ASSERT_TRUE(SumOf(self, 10).ok());
        const bool differs = self.rank() == 1;
        const Status status = SumOf(self, differs ? count + 1 : count, differs ? 8 : 7);
        EXPECT_EQ(status.code(), Code::kMismatch);
        EXPECT_EQ(status.peer(), differs ? 0 : 1);
      });
    }
  }
}

TEST(ArenaMismatch, OfDifferentCollectives) {
  OnEveryArenaRank(ArenaWorld{3, 0, 0, true}, [&](ArenaRank& self) {
    const Status status = self.rank() == 2 ? ArenaBarrier(self.Next(1)) : SumOf(self, 300000, 2);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.peer(), self.rank() == 2 ? 0 : 2);
  });
}

TEST(ArenaMismatch, OfARankThatSkippedAnEqualOperation) {
  OnEveryArenaRank(ArenaWorld{2, 0, 0, false}, [&](ArenaRank& self) {
    if (self.rank() == 1) self.Next();
    EXPECT_EQ(SumOf(self, 4).code(), Code::kMismatch);
  });
}

TEST(ArenaDeadline, NamesTheMissingRanks) {
  OnEveryArenaRank(ArenaWorld{4, 0, 0, false}, [&](ArenaRank& self) {
    ASSERT_TRUE(ArenaBarrier(self.Next()).ok());
    if (self.rank() == 1 || self.rank() == 3) return;
    const ArenaContext context = self.Next(7, 1.0);
    const auto begin = Clock::now();
    const Status status = ArenaBarrier(context);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(status.peer(), 1);
    EXPECT_NE(status.message().find("ranks 1, 3"), std::string::npos) << status.message();
    EXPECT_EQ(MissingLocalRanks(context), (std::vector<int>{1, 3}));
    EXPECT_LT(SecondsSince(begin), 30.0);
  });
}

// The one who is late in the middle of a long operation is named too.
TEST(ArenaDeadline, NamesARankThatStopsInTheMiddle) {
  OnEveryArenaRank(ArenaWorld{3, 0, 0, false}, [&](ArenaRank& self) {
    const size_t bytes = 3 << 20;
    if (self.rank() == 2) {  // takes part in the first round of the broadcast only
      Bytes output(1);
      ASSERT_TRUE(ArenaBroadcast(self.Next(), 0, {}, {{output.data(), 1}}).ok());
      return;
    }
    Bytes memory(bytes);
    const ArenaContext context = self.Next(7, 1.0);
    const Status status = ArenaBroadcast(context, 0, {{memory.data(), bytes}}, {{memory.data(), bytes}});
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    if (self.rank() != 0) return;
    EXPECT_EQ(status.peer(), 2) << status.message();
  });
}

TEST(ArenaErrors, NameRanksOfTheWorld) {
  const std::vector<int> world_ranks = {4, 7};
  OnEveryArenaRank(ArenaWorld{2, 0, 0, false}, [&](ArenaRank& self) {
    if (self.rank() == 1) return;
    ArenaContext context = self.Next(7, 0.05);
    context.world_ranks = &world_ranks;
    const Status status = ArenaBarrier(context);
    EXPECT_EQ(status.peer(), 7);
    EXPECT_NE(status.message().find("rank 7"), std::string::npos) << status.message();
  });
}

TEST(ArenaInterrupt, EndsAWaitingOperation) {
  OnEveryArenaRank(ArenaWorld{3, 0, 0, false}, [&](ArenaRank& self) {
    ASSERT_TRUE(SumOf(self, 1000).ok());
    if (self.rank() == 0) return;
    Clock::time_point interrupted;
    std::thread monitor([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the operation should be asleep by then
      interrupted = Clock::now();
      self.arena().Interrupt(Status(Code::kPeerLost, "rank 0 is gone", 0));
    });
    const Status status = SumOf(self, 1000);
    const auto ended = Clock::now();
    monitor.join();
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_LT(std::chrono::duration<double>(ended - interrupted).count(), 10.0);
    EXPECT_EQ(SumOf(self, 1000).code(), Code::kPeerLost);
  });
}

TEST(ArenaArguments, AreChecked) {
  OnEveryArenaRank(ArenaWorld{1, 0, 0, false}, [&](ArenaRank& self) {
    Bytes memory(16);
    const ConstSpans input = {{memory.data(), 16}};
    const MutableSpans output = {{memory.data(), 8}};
    EXPECT_EQ(ArenaAllReduce(self.Next(), Reduction(), input, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaReduceScatter(self.Next(), Reduction(), input, {0, 8}, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaReduceScatter(self.Next(), Reduction(), input, {0}, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaAllGather(self.Next(), input, {0, 8}, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaBroadcast(self.Next(), 0, input, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaBroadcast(self.Next(), 1, input, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaAllToAll(self.Next(), {16, 16}, input, output).code(), Code::kInvalidArgument);
    EXPECT_EQ(ArenaAllReduce(self.Next(), Reduction(), {{memory.data(), 6}}, {{memory.data(), 6}}).code(),
              Code::kInvalidArgument);
  });
}

// ---- real processes -------------------------------------------------------------------------------------

struct Child {
  pid_t pid;
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

// The child is another process with one thread: it may only do what is safe after fork, which the
// arena is.
template <typename Body>
pid_t ForkRank(int fd, ArenaShape shape, const Body& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  auto arena = Arena::Attach(shape, UniqueFd(dup(fd)));
  if (!arena.ok()) _exit(2);
  ArenaRank self(arena.Take(), 0, 0);
  _exit(body(self) ? 0 : 1);
}

TEST(ArenaProcesses, ReduceTogether) {
  constexpr int kRanks = 3;
  auto leader = Arena::Create(ArenaShape{0, kRanks, 1});
  ASSERT_TRUE(leader.ok());
  const auto body = [](ArenaRank& self) {
    for (size_t count : {1, 1000, 300007}) {
      const Bytes input = InputBytes(Dtype::kFloat32, Op::kSum, kRanks, self.rank(), count);
      Bytes output(input.size());
      const Status status =
          ArenaAllReduce(self.Next(), Reduction(), {{input.data(), input.size()}}, {{output.data(), output.size()}});
      if (!status.ok() || output != ExpectedBytes(Dtype::kFloat32, Op::kSum, kRanks, count)) return false;
    }
    return true;
  };
  std::vector<pid_t> children;
  for (int rank = 1; rank < kRanks; ++rank) {
    children.push_back(ForkRank(leader.value()->fd(), ArenaShape{rank, kRanks, 1}, body));
  }
  ArenaRank self(leader.Take(), 0, 0);
  EXPECT_TRUE(body(self));
  for (pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

// The process that sees the death interrupts the operation, which ends at once with that cause.
TEST(ArenaProcesses, AKilledPeerEndsTheOperationByAnInterrupt) {
  auto leader = Arena::Create(ArenaShape{0, 2, 1});
  ASSERT_TRUE(leader.ok());
  const Child child{ForkRank(leader.value()->fd(), ArenaShape{1, 2, 1}, [](ArenaRank& peer) {
    if (!SumOf(peer, 100).ok()) return false;
    pause();
    return true;
  })};
  ArenaRank self(leader.Take(), 0, 0);
  ASSERT_TRUE(SumOf(self, 100).ok());
  Clock::time_point killed;
  std::thread monitor([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the operation should be asleep by then
    kill(child.pid, SIGKILL);
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT);
    killed = Clock::now();
    self.arena().Interrupt(Status(Code::kPeerLost, "rank 1 was killed", 1));
  });
  const Status status = SumOf(self, 100);
  const auto ended = Clock::now();
  monitor.join();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_LT(std::chrono::duration<double>(ended - killed).count(), 10.0);
}

}  // namespace
}  // namespace tfc
