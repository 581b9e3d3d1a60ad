// The arena: what it refuses to map, how its ranks wait for each other, and how waits end.
#include "collectives/shm/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/memfd.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/shm/arena_channel.h"
#include "collectives/shm/arena_layout.h"
#include "testing/refused_calls.h"

namespace tfc {
namespace {

using Clock = Deadline::Clock;

std::unique_ptr<Arena> MakeArena(int local_size, int local_rank = 0) {
  auto arena = Arena::Create(ArenaShape{local_rank, local_size, 4});
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return arena.Take();
}

std::unique_ptr<Arena> AttachTo(const Arena& leader, int local_rank) {
  ArenaShape shape = leader.shape();
  shape.local_rank = local_rank;
  auto arena = Arena::Attach(shape, UniqueFd(dup(leader.fd())));
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return arena.Take();
}

class Flag : public Condition {
 public:
  bool Holds() const override { return set_.load(); }
  void Set() { set_.store(true); }

 private:
  std::atomic<bool> set_{false};
};

class Never : public Condition {
 public:
  bool Holds() const override { return false; }
};

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

long VoluntarySwitches() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ArenaShapeTest, RefusesWhatNoWorldHas) {
  EXPECT_EQ(Arena::Create(ArenaShape{0, 0, 4}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::Create(ArenaShape{2, 2, 4}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::Create(ArenaShape{-1, 2, 4}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::Create(ArenaShape{0, 2, 0}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::Create(ArenaShape{0, 1 << 20, 4}).status().code(), Code::kInvalidArgument);
}

// On a thread of its own, which then cannot make the call any more.
template <typename Body>
void Without(int call, int error, const Body& body) {
  std::thread([&] {
    ASSERT_TRUE(RefuseCall(call, error)) << "this system has no seccomp";
    body();
  }).join();
}

size_t BytesOf(const Arena& arena) {
  struct stat info = {};
  EXPECT_EQ(fstat(arena.fd(), &info), 0);
  return static_cast<size_t>(info.st_blocks) * 512;
}

TEST(ArenaMemoryTest, ARefusedCallIsNamed) {
  Without(SYS_memfd_create, EACCES, [] {
    const Status status = Arena::Create(ArenaShape{0, 2, 4}).status();
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_EQ(status.message(), "memfd_create failed: Permission denied");
  });
}

TEST(ArenaMemoryTest, TooLittleMemoryIsSeenBeforeItIsUsed) {
  Without(SYS_fallocate, ENOSPC, [] {
    const Status status = Arena::Create(ArenaShape{0, 2, 4}).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.message().find("KiB of shared memory failed: No space left on device"), std::string::npos);
  });
}

TEST(ArenaMemoryTest, AChannelThatFindsNoMemoryMayAskAgain) {
  const auto arena = MakeArena(2);
  Without(SYS_fallocate, ENOMEM, [&] {
    EXPECT_TRUE(arena->Reserve(0).ok());
    EXPECT_EQ(arena->Reserve(1).code(), Code::kResourceExhausted);
  });
  EXPECT_TRUE(arena->Reserve(1).ok());
}

TEST(ArenaMemoryTest, AFileSystemThatCannotReserveIsUsedAsItIs) {
  Without(SYS_fallocate, EOPNOTSUPP, [] {
    const auto arena = MakeArena(2);
    EXPECT_TRUE(arena->Reserve(1).ok());
  });
}

TEST(ArenaMemoryTest, AChannelTakesMemoryFromReserveToRelease) {
  constexpr size_t kMost = 2 * ArenaLayout::kSlots * ArenaLayout::kSegmentSize;  // of a channel
  const auto leader = MakeArena(2);
  const auto other = AttachTo(*leader, 1);
  const size_t before = BytesOf(*leader);
  ASSERT_TRUE(leader->Reserve(2).ok());
  EXPECT_GE(BytesOf(*leader), before + kMost);
  ASSERT_TRUE(other->Reserve(2).ok());
  for (Arena* arena : {leader.get(), other.get()}) {
    const ArenaChannel channel(*arena, 2);
    for (uint64_t round = 0; round < 20; ++round) {
      channel.slot(round)[channel.segment_size() - 1] = std::byte{1};
      channel.PublishStaged(round, 7);
    }
  }
  const size_t full = BytesOf(*leader);
  leader->Release(2);
  other->Release(2);
  EXPECT_LE(BytesOf(*leader), full - kMost * 9 / 10);
}

// The flags are not lost with the memory: the rounds go on.
TEST(ArenaMemoryTest, AReleasedChannelGoesOnWhereItWas) {
  const auto leader = MakeArena(2);
  const auto other = AttachTo(*leader, 1);
  const ArenaChannel first(*leader, 1), second(*other, 1);
  for (uint64_t round = 0; round < 1000; ++round) {
    if (round % 100 == 0) {
      leader->Release(1);
      other->Release(1);
    }
    for (const ArenaChannel& channel : {first, second}) {
      ASSERT_TRUE(PhaseDone(channel, PhaseDone::Phase::kReusable, round).Holds()) << round;
      ASSERT_TRUE((channel.local_rank() == 0 ? leader : other)->Reserve(1).ok());
      channel.slot(round)[1000] = static_cast<std::byte>(round);
      channel.PublishStaged(round, round);
    }
    ASSERT_EQ(second.peer_slot(0, round)[1000], static_cast<std::byte>(round));
    ASSERT_EQ(first.peer_slot(1, round)[1000], static_cast<std::byte>(round));
  }
}

TEST(ArenaAttachTest, RefusesAnotherShape) {
  const auto leader = MakeArena(2);
  EXPECT_EQ(Arena::Attach(ArenaShape{1, 3, 4}, UniqueFd(dup(leader->fd()))).status().code(), Code::kProtocol);
  EXPECT_EQ(Arena::Attach(ArenaShape{1, 2, 5}, UniqueFd(dup(leader->fd()))).status().code(), Code::kProtocol);
}

TEST(ArenaAttachTest, TakesOverWhetherTheNodeIsCrowded) {
  for (bool crowded : {false, true}) {
    ArenaShape shape{0, 2, 4, crowded};
    auto leader = Arena::Create(shape);
    ASSERT_TRUE(leader.ok());
    EXPECT_EQ(AttachTo(*leader.value(), 1)->shape().crowded, crowded);
    auto other = Arena::Attach(ArenaShape{1, 2, 4, !crowded}, UniqueFd(dup(leader.value()->fd())));
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(other.value()->shape().crowded, crowded);
  }
}

TEST(ArenaAttachTest, RefusesADescriptorThatIsNone) {
  EXPECT_EQ(Arena::Attach(ArenaShape{1, 2, 4}, UniqueFd()).status().code(), Code::kIo);
}

UniqueFd MakeMemory(size_t size, int seals) {
  UniqueFd fd(static_cast<int>(syscall(SYS_memfd_create, "test", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(ArenaAttachTest, RefusesMemoryThatCanShrink) {
  const ArenaShape shape{1, 2, 4};
  UniqueFd fd = MakeMemory(ArenaLayout(shape).total_size, F_SEAL_GROW);
  EXPECT_EQ(Arena::Attach(shape, std::move(fd)).status().code(), Code::kProtocol);
}

TEST(ArenaAttachTest, RefusesMemoryWithoutHeader) {
  const ArenaShape shape{1, 2, 4};
  UniqueFd fd = MakeMemory(ArenaLayout(shape).total_size, F_SEAL_GROW | F_SEAL_SHRINK);
  EXPECT_EQ(Arena::Attach(shape, std::move(fd)).status().code(), Code::kProtocol);
}

TEST(ArenaTest, IsSealedAndClosedOnExec) {
  const auto arena = MakeArena(2);
  EXPECT_NE(ftruncate(arena->fd(), 0), 0);
  EXPECT_NE(fcntl(arena->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(ArenaTest, OnlyTheFirstChannelHasMemoryAtTheBeginning) {
  const auto arena = Arena::Create(ArenaShape{0, 8, 64});
  ASSERT_TRUE(arena.ok());
  struct stat info = {};
  ASSERT_EQ(fstat(arena.value()->fd(), &info), 0);
  EXPECT_GT(info.st_size, 500 << 20);
  EXPECT_LT(BytesOf(*arena.value()), size_t{9} << 20);
}

class WaitTest : public testing::TestWithParam<int> {
 protected:
  int spin_us() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(SpinMicroseconds, WaitTest, testing::Values(0, 1, 1000));

TEST_P(WaitTest, EndsWhenAPeerPublishes) {
  const auto leader = MakeArena(2);
  const auto peer = AttachTo(*leader, 1);
  for (uint32_t channel : {0u, 1u}) {
    std::thread publisher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the other side should be asleep by then
      const ArenaChannel view(*peer, channel);
      view.slot(0)[5] = std::byte{77};
      view.PublishStaged(0, 42);
    });
    const ArenaChannel view(*leader, channel);
    const auto waiter =
        leader->MakeWaiter(channel == 0 ? Arena::Sleeper::kCaller : Arena::Sleeper::kProgress, spin_us());
    const PhaseDone staged(view, PhaseDone::Phase::kStaged, 0, 1);
    EXPECT_TRUE(waiter->WaitFor(staged, Deadline::After(20)).ok());
    EXPECT_EQ(view.Signature(1, 0), 42u);
    EXPECT_EQ(std::to_integer<int>(view.peer_slot(1, 0)[5]), 77);
    publisher.join();
  }
}

TEST_P(WaitTest, EndsAtTheDeadline) {
  const auto arena = MakeArena(2);
  const auto begin = Clock::now();
  const Status status = arena->MakeWaiter(Arena::Sleeper::kCaller, spin_us())->WaitFor(Never(), Deadline::After(0.05));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_GE(SecondsSince(begin), 0.05);
  EXPECT_LT(SecondsSince(begin), 10.0);
}

TEST_P(WaitTest, AnInterruptEndsItAndAllLaterOnes) {
  const auto arena = MakeArena(2);
  Clock::time_point interrupted;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the waiter should be asleep by then
    interrupted = Clock::now();
    arena->Interrupt(Status(Code::kPeerLost, "rank 1 is gone", 1));
    arena->Interrupt(Status(Code::kAborted, "too late"));
  });
  const auto waiter = arena->MakeWaiter(Arena::Sleeper::kCaller, spin_us());
  const Status status = waiter->WaitFor(Never(), Deadline::After(60));
  const auto ended = Clock::now();
  other.join();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_EQ(status.message(), "rank 1 is gone");
  EXPECT_LT(std::chrono::duration<double>(ended - interrupted).count(), 10.0);
  EXPECT_EQ(waiter->WaitFor(Never(), Deadline::After(60)).code(), Code::kPeerLost);
  EXPECT_EQ(arena->interrupted().code(), Code::kPeerLost);
}

TEST(SleepTest, CostsNothingWhileNothingHappens) {
  const auto arena = MakeArena(2);
  const long switches = VoluntarySwitches();
  const double cpu = CpuSeconds();
  const auto waiter = arena->MakeWaiter(Arena::Sleeper::kProgress, 50);
  EXPECT_EQ(waiter->WaitFor(Never(), Deadline::After(0.5)).code(), Code::kDeadlineExceeded);
  EXPECT_LE(VoluntarySwitches() - switches, 5);
  EXPECT_LT(CpuSeconds() - cpu, 0.05);
}

TEST(SleepTest, RingWakes) {
  const auto arena = MakeArena(1);
  Flag work;
  std::atomic<int> awake{0};
  std::thread progress([&] {
    while (!work.Holds()) {
      arena->SleepUntilRung(Arena::Sleeper::kProgress, work, Deadline::After(60));
      ++awake;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread should be asleep by then
  work.Set();
  arena->Ring(Arena::Sleeper::kProgress);
  progress.join();
  EXPECT_LE(awake.load(), 1);
}

// A ringer takes the ringing over (sleeping becomes kAwake) before it does it: it may be killed in between.
TEST(SleepTest, AnInterruptWakesASleeperWhoseRingerIsDead) {
  const auto arena = MakeArena(1);
  const ArenaLayout layout(arena->shape());
  void* base = mmap(nullptr, layout.total_size, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(base, MAP_FAILED);
  auto* doorbell =
      reinterpret_cast<Doorbell*>(static_cast<std::byte*>(base) + layout.doorbell(Arena::Sleeper::kCaller, 0));
  const auto begin = Clock::now();
  std::thread sleeper([&] {
    const auto waiter = arena->MakeWaiter(Arena::Sleeper::kCaller, 0);
    EXPECT_EQ(waiter->WaitFor(Never(), Deadline::After(20)).code(), Code::kAborted);
  });
  while (doorbell->sleeping.load() == Doorbell::kAwake) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it is asleep by then
  doorbell->sleeping.store(Doorbell::kAwake);
  arena->Interrupt(Status(Code::kAborted, "for the test"));
  sleeper.join();
  EXPECT_LT(SecondsSince(begin), 10.0);
  munmap(base, layout.total_size);
}

// Work that is handed over under a mutex or with release order only must not be lost either.
TEST(SleepTest, NoRingIsLost) {
  const auto arena = MakeArena(1);
  constexpr int kItems = 20000;
  std::atomic<int> given{0};
  int taken = 0;
  class HasWork : public Condition {
   public:
    HasWork(const std::atomic<int>& given, const int& taken) : given_(given), taken_(taken) {}
    bool Holds() const override { return given_.load(std::memory_order_relaxed) > taken_; }

   private:
    const std::atomic<int>& given_;
    const int& taken_;
  };
  std::atomic<int> done{0};
  std::thread progress([&] {
    while (taken < kItems) {
      arena->SleepUntilRung(Arena::Sleeper::kProgress, HasWork(given, taken), Deadline::After(60));
      taken = given.load(std::memory_order_acquire);
      done.store(taken, std::memory_order_release);
    }
  });
  const auto begin = Clock::now();
  for (int i = 1; i <= kItems; ++i) {
    given.store(i, std::memory_order_release);
    arena->Ring(Arena::Sleeper::kProgress);
    if (i % 3 == 0) {
      while (done.load(std::memory_order_acquire) < i) std::this_thread::yield();
    }
  }
  progress.join();
  EXPECT_EQ(taken, kItems);
  EXPECT_LT(SecondsSince(begin), 50.0) << "a wakeup was lost: a rank slept until the deadline";
}

// Every rank publishes and waits for all others, over and over, without spinning: one lost wake-up
// and the test takes a minute.
TEST(SleepTest, NoPublicationIsLost) {
  constexpr int kRanks = 3;
  constexpr uint64_t kRounds = 3000;
  const auto leader = MakeArena(kRanks);
  const auto begin = Clock::now();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      auto arena = Arena::Share(*leader, rank);
      ASSERT_TRUE(arena.ok());
      const auto waiter = arena.value()->MakeWaiter(Arena::Sleeper::kCaller, 0);
      const ArenaChannel channel(*arena.value(), 0);
      for (uint64_t round = 0; round < kRounds; ++round) {
        channel.PublishStaged(round, 1);
        const PhaseDone staged(channel, PhaseDone::Phase::kStaged, round);
        ASSERT_TRUE(waiter->WaitFor(staged, Deadline::After(60)).ok());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_LT(SecondsSince(begin), 50.0);
}

// The same with ranks that sleep in poll, as those do that have connections to read; one sleeps on its doorbell.
TEST(SleepTest, NoPublicationIsLostToASleeperInPoll) {
  constexpr int kRanks = 3;
  constexpr uint64_t kRounds = 3000;
  const auto leader = MakeArena(kRanks);
  std::vector<EventFd> bells;
  for (int rank = 0; rank < kRanks; ++rank) bells.push_back(EventFd::Create().Take());
  leader->HangBells(std::move(bells));
  const auto begin = Clock::now();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      auto arena = Arena::Share(*leader, rank).Take();
      const ArenaChannel channel(*arena, 1);
      const auto poll_bell = [&arena] {
        pollfd watched{arena->bell()->fd(), POLLIN, 0};
        ::poll(&watched, 1, 60000);
        arena->bell()->Drain();
      };
      for (uint64_t round = 0; round < kRounds; ++round) {
        channel.PublishStaged(round, 1);
        const PhaseDone staged(channel, PhaseDone::Phase::kStaged, round);
        while (!staged.Holds()) {
          if (rank > 0) {
            arena->PollUntilRung(staged, poll_bell);
          } else {
            arena->SleepUntilRung(Arena::Sleeper::kProgress, staged, Deadline::After(60));
          }
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_LT(SecondsSince(begin), 50.0);
}

TEST(SleepTest, AnInterruptWakesASleeperInPoll) {
  const auto arena = MakeArena(1);
  std::vector<EventFd> bells;
  bells.push_back(EventFd::Create().Take());
  arena->HangBells(std::move(bells));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the sleeper should be asleep by then
    arena->Interrupt(Status(Code::kAborted, "for the test"));
  });
  int woken = 0;
  arena->PollUntilRung(Never(), [&] {
    pollfd watched{arena->bell()->fd(), POLLIN, 0};
    woken = ::poll(&watched, 1, 20000);
  });
  other.join();
  EXPECT_EQ(woken, 1);
}

TEST(PhaseDoneTest, NamesTheMissing) {
  const auto leader = MakeArena(4, 1);
  const auto second = AttachTo(*leader, 2);
  const ArenaChannel channel(*leader, 3);
  ArenaChannel(*second, 3).PublishStaged(0, 1);
  channel.PublishStaged(0, 1);
  const PhaseDone staged(channel, PhaseDone::Phase::kStaged, 0);
  EXPECT_FALSE(staged.Holds());
  EXPECT_EQ(staged.AwaitedRank(), 0);
  EXPECT_EQ(staged.Missing(), (std::vector<int>{0, 3}));
  const PhaseDone reduced(channel, PhaseDone::Phase::kReduced, 0, 2);
  EXPECT_EQ(reduced.Missing(), (std::vector<int>{2}));
}

TEST(ArenaChannelTest, ASlotIsReusableOnceAllPeersWentOn) {
  const auto leader = MakeArena(2);
  const auto peer = AttachTo(*leader, 1);
  const ArenaChannel own(*leader, 0), other(*peer, 0);
  const auto reusable = [&](uint64_t round) { return PhaseDone(own, PhaseDone::Phase::kReusable, round).Holds(); };
  constexpr uint64_t kSlots = ArenaChannel::kSlots, kRunAhead = ArenaChannel::kRunAhead;
  for (uint64_t round = 0; round < kSlots; ++round) {
    EXPECT_TRUE(reusable(round));
    own.PublishStaged(round, 1);
  }
  EXPECT_FALSE(reusable(kSlots));
  for (uint64_t round = 0; round < kRunAhead; ++round) other.PublishStaged(round, 1);
  EXPECT_FALSE(reusable(kSlots)) << "the peer may have published so much without having read round 0";
  other.PublishStaged(kRunAhead, 1);
  EXPECT_TRUE(reusable(kSlots));
  EXPECT_FALSE(reusable(kSlots + 1));
}

}  // namespace
}  // namespace tfc
