#include "control/star.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace tfc {
namespace {

class SilentHandler : public StarHandler {
 public:
  void OnMessage(int, uint8_t, const std::string&) override {}
  void OnClosed(int, const Status&) override {}
  void OnDataConnection(int, UniqueFd) override {}
  std::optional<Deadline::Clock::time_point> OnTick(Deadline::Clock::time_point) override { return std::nullopt; }
};

struct Member {
  SilentHandler handler;
  SocketAddress address;
  std::unique_ptr<Star> star;

  Member(int rank, int size, const SocketAddress* root) {
    auto listener = TcpListener::Create("127.0.0.1");
    address = listener.value().address();
    StarOptions options;
    options.self = Identity{rank, size, 1};
    options.root = root != nullptr ? *root : address;
    options.key.assign(32, 7);
    star = std::move(Star::Create(options, listener.Take(), &handler)).Take();
  }
};

TEST(StarTest, TheRootStopsWaitingWhenAPeerThatHadConnectedIsGone) {
  Member root(0, 3, nullptr);
  Member peer(1, 3, &root.address);
  Status seen;
  std::thread starting([&] { seen = root.star->Start(Deadline::After(30)); });
  ASSERT_TRUE(peer.star->Start(Deadline::After(10)).ok());
  const auto begin = std::chrono::steady_clock::now();
  peer.star->Stop(Deadline::After(0));
  starting.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(seen.code(), Code::kPeerLost) << seen.message();
  EXPECT_EQ(seen.peer(), 1);
  root.star->Stop(Deadline::After(0));
}

TEST(StarTest, TheRootNamesThePeersThatDidNotConnect) {
  Member root(0, 3, nullptr);
  Member peer(1, 3, &root.address);
  Status seen;
  std::thread starting([&] { seen = root.star->Start(Deadline::After(2)); });
  ASSERT_TRUE(peer.star->Start(Deadline::After(10)).ok());
  starting.join();
  EXPECT_EQ(seen.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(seen.peer(), 2);
  EXPECT_NE(seen.message().find("rank 2"), std::string::npos) << seen.message();
  peer.star->Stop(Deadline::After(0));
  root.star->Stop(Deadline::After(0));
}

}  // namespace
}  // namespace tfc
