#include "control/control_connections.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "testing/own_network.h"

namespace tfc {
namespace {

class SilentHandler : public ControlHandler {
 public:
  void OnMessage(int, uint8_t, const std::string&) override {}
  void OnClosed(int, const Status&) override { closed = true; }
  void OnDataConnection(int, UniqueFd) override {}
  std::optional<Deadline::Clock::time_point> OnTick(Deadline::Clock::time_point) override { return std::nullopt; }

  std::atomic<bool> closed{false};
};

struct Member {
  SilentHandler handler;
  SocketAddress address;
  std::unique_ptr<ControlConnections> control;

  Member(int rank, int size, const SocketAddress* root) {
    auto listener = TcpListener::Create("127.0.0.1");
    address = listener.value().address();
    ControlOptions options;
    options.self = Identity{rank, size, 1};
    options.root = root != nullptr ? *root : address;
    options.key.assign(32, 7);
    control = std::move(ControlConnections::Create(options, listener.Take(), &handler)).Take();
  }
};

TEST(ControlConnectionsTest, TheRootStopsWaitingWhenAPeerThatHadConnectedIsGone) {
  Member root(0, 3, nullptr);
  Member peer(1, 3, &root.address);
  Status seen;
  std::thread starting([&] { seen = root.control->Start(Deadline::After(30)); });
  ASSERT_TRUE(peer.control->Start(Deadline::After(10)).ok());
  const auto begin = std::chrono::steady_clock::now();
  peer.control->Stop(Deadline::After(0));
  starting.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(seen.code(), Code::kPeerLost) << seen.message();
  EXPECT_EQ(seen.peer(), 1);
  root.control->Stop(Deadline::After(0));
}

TEST(ControlConnectionsTest, TheRootNamesThePeersThatDidNotConnect) {
  Member root(0, 3, nullptr);
  Member peer(1, 3, &root.address);
  Status seen;
  std::thread starting([&] { seen = root.control->Start(Deadline::After(2)); });
  ASSERT_TRUE(peer.control->Start(Deadline::After(10)).ok());
  starting.join();
  EXPECT_EQ(seen.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(seen.peer(), 2);
  EXPECT_NE(seen.message().find("rank 2"), std::string::npos) << seen.message();
  peer.control->Stop(Deadline::After(0));
  root.control->Stop(Deadline::After(0));
}

// Keepalive rests while a message is under way: the monitor has to look.
TEST(ControlConnectionsTest, APeerWhoseHostIsCutOffIsLost) {
  if (std::getenv("TFC_TEST_LATE_SECONDS") == nullptr) GTEST_SKIP() << "takes 12 s: make test-late";
  bool alone = false;
  std::thread([&] {
    alone = ::unshare(CLONE_NEWNET) == 0;  // for the threads that this one starts, too
    if (!alone) return;
    ASSERT_TRUE(SetLoopback(true));
    Member root(0, 2, nullptr);
    Member peer(1, 2, &root.address);
    std::thread starting([&] { EXPECT_TRUE(root.control->Start(Deadline::After(30)).ok()); });
    EXPECT_TRUE(peer.control->Start(Deadline::After(10)).ok());
    starting.join();
    root.control->Send(1, 1, "arrives");
    std::this_thread::sleep_for(std::chrono::seconds(3));  // the monitor has seen that it did
    ASSERT_TRUE(SetLoopback(false));
    const auto cut = std::chrono::steady_clock::now();
    root.control->Send(1, 1, "gets lost");
    while (!root.handler.closed && std::chrono::steady_clock::now() - cut < std::chrono::seconds(60))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LT(std::chrono::steady_clock::now() - cut, std::chrono::seconds(20));  // 15 on a machine that is not busy
    peer.control->Stop(Deadline::After(0));
    root.control->Stop(Deadline::After(0));
  }).join();
  if (!alone) GTEST_SKIP() << "a network of its own needs CAP_SYS_ADMIN";
}

}  // namespace
}  // namespace tfc
