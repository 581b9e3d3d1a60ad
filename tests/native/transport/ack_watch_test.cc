// Slow is not gone: a host whose process does not read keeps its connections, one that does not answer loses them.
#include "collectives/transport/tcp/ack_watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/unique_fd.h"
#include "collectives/transport/tcp/socket_options.h"
#include "testing/own_network.h"

namespace tfc {
namespace {

using State = AckWatch::State;

constexpr double kBetween = 0.05;  // seconds between looks; the library takes its time

// The states after `looks` looks at the same facts.
State After(int looks, const AckWatch::Facts& facts) {
  AckWatch watch;
  State state = State::kQuiet;
  for (int i = 0; i < looks; ++i) state = watch.Judge(facts, AckWatch::kSeconds);
  return state;
}

AckWatch::Facts Facts(uint32_t unacked, uint32_t window, uint32_t probes, uint32_t heard_millis_ago) {
  return AckWatch::Facts{unacked, window, probes, 4000, heard_millis_ago};
}

TEST(AckWatchTest, AVanishedHostIsSilentWithinFifteenSeconds) {
  EXPECT_LE((AckWatch::kLooks + 2) * AckWatch::kSeconds, 13.0);
  const AckWatch::Facts under_way = Facts(3, 65536, 0, 9000);
  EXPECT_EQ(After(AckWatch::kLooks - 1, under_way), State::kWaiting);
  EXPECT_EQ(After(AckWatch::kLooks, under_way), State::kSilent);
  EXPECT_EQ(After(AckWatch::kLooks, Facts(0, 0, 4, 9000)), State::kSilent);
}

TEST(AckWatchTest, AFullWindowIsNoSilence) {
  EXPECT_EQ(After(1000, Facts(0, 0, 0, 60000)), State::kWaiting) << "between two probes";
  EXPECT_EQ(After(1000, Facts(0, 0, 1, 60000)), State::kWaiting) << "a probe got lost";
  EXPECT_EQ(After(1000, Facts(3, 0, 0, 60000)), State::kWaiting) << "segments beyond a window that shrank";
}

TEST(AckWatchTest, AnAnswerBreaksTheSilence) {
  AckWatch watch;
  const AckWatch::Facts silent = Facts(3, 65536, 0, 9000);
  for (int i = 0; i < AckWatch::kLooks - 1; ++i) watch.Judge(silent, AckWatch::kSeconds);
  EXPECT_EQ(watch.Judge(Facts(3, 65536, 0, 200), AckWatch::kSeconds), State::kWaiting);
  EXPECT_EQ(watch.Judge(silent, AckWatch::kSeconds), State::kWaiting);
}

// It finds new segments under way and an answer of long ago, and has not looked in between.
TEST(AckWatchTest, AProcessThatWasStoppedBlamesNoPeer) {
  EXPECT_EQ(After(1, Facts(3, 65536, 0, 60000)), State::kWaiting);
}

TEST(AckWatchTest, NothingUnderWayNeedsNoLook) {
  EXPECT_EQ(After(1000, AckWatch::Facts{0, 65536, 0, 0, 90000}), State::kQuiet);
}

// ---- real connections -----------------------------------------------------------------------------------------------

// Two ends of a connection over the loopback interface.
struct Pair {
  UniqueFd sender, receiver;

  Pair() {
    const UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listening.get(), 1), 0);
    EXPECT_EQ(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    sender = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(sender.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    receiver = UniqueFd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (const int fd : {sender.get(), receiver.get()}) EXPECT_TRUE(ConfigureConnection(fd).ok());
  }

  // All that has come.
  void Drain() const {
    std::array<char, 65536> bytes;
    while (::recv(receiver.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }

  // Until the kernels take no more.
  void Fill() const {
    static const std::array<char, 65536> bytes = {};
    for (int tries = 0; tries < 5; ++tries) {
      while (::send(sender.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) tries = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
};

// What a look says at last: after `seconds`, or when it is no longer kWaiting. `reads`: so does the receiver.
State LookFor(double seconds, const Pair& pair, bool reads = false) {
  AckWatch watch;
  for (double passed = 0; passed < seconds; passed += kBetween) {
    if (reads) pair.Drain();
    std::this_thread::sleep_for(std::chrono::duration<double>(kBetween));
    const State state = watch.Look(pair.sender.get(), kBetween);
    if (state != State::kWaiting) return state;
  }
  return State::kWaiting;
}

TEST(AckWatchTest, APeerThatDoesNotReadStaysAndOneThatReadsIsQuiet) {
  const Pair pair;
  EXPECT_EQ(LookFor(0.1, pair), State::kQuiet);
  pair.Fill();
  EXPECT_EQ(LookFor(3 * kBetween * AckWatch::kLooks, pair), State::kWaiting);
  EXPECT_EQ(LookFor(10, pair, true), State::kQuiet);
}

// In a network of its own, so that its loopback interface can be taken away.
State AfterACut(bool full_window) {
  State state = State::kQuiet;
  std::thread alone([&] {
    if (::unshare(CLONE_NEWNET) != 0 || !SetLoopback(true)) return;
    const Pair pair;
    if (full_window) pair.Fill();
    SetLoopback(false);
    if (!full_window) EXPECT_EQ(::send(pair.sender.get(), "x", 1, MSG_NOSIGNAL), 1);
    state = LookFor(20, pair);
  });
  alone.join();
  return state;
}

bool MayCut() {
  bool may = false;
  std::thread([&] { may = ::unshare(CLONE_NEWNET) == 0; }).join();
  return may;
}

TEST(AckWatchTest, AHostThatIsCutOffIsSilent) {
  if (!MayCut()) GTEST_SKIP() << "a network of its own needs CAP_SYS_ADMIN";
  EXPECT_EQ(AfterACut(false), State::kSilent);
  EXPECT_EQ(AfterACut(true), State::kSilent);
}

}  // namespace
}  // namespace tfc
