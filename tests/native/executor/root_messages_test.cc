// What rank 0 sends over the control connections, counted at the other ranks, which are played by the test.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agreement/messages.h"
#include "collectives/transport/tcp/dialer.h"
#include "executor/engine.h"
#include "executor/messages.h"
#include "testing/crowd.h"
#include "testing/tcp_world.h"

namespace tfc {
namespace {

// The control connection of one rank.
class Peer {
 public:
  Peer(const SocketAddress& root, int rank)
      : fd_(TakeOrDie(Connect(root, Hello{Purpose::kControl, 7, rank, 0}, TcpWorld::Key(), Deadline::After(60),
                              /*cancel_fd=*/-1))) {}

  void Say(Message type, const std::string& payload) {
    std::string frame(5, '\0');
    const auto size = static_cast<uint32_t>(payload.size());
    std::memcpy(frame.data(), &size, sizeof(size));
    frame[4] = static_cast<char>(type);
    frame += payload;
    ASSERT_EQ(::send(fd_.get(), frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  }

  // Reads and counts messages until one of this type, or the end of the stream, has come; answers what has to be.
  void ReadUntil(Message last, std::map<Message, int>* counts) {
    while (true) {
      char header[5];
      if (!Read(header, sizeof(header))) return;
      uint32_t size = 0;
      std::memcpy(&size, header, sizeof(size));
      std::string payload(size, '\0');
      if (!Read(payload.data(), size)) return;
      const auto type = static_cast<Message>(header[4]);
      ++(*counts)[type];
      if (type == Message::kJoined) Say(Message::kNoted, "");
      if (type == last) return;
    }
  }

 private:
  bool Read(char* data, size_t size) {
    for (size_t done = 0; done < size;) {
      pollfd ready = {fd_.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&ready, 1, 60000), 1);
      const ssize_t got = ::recv(fd_.get(), data + done, size - done, MSG_DONTWAIT);
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }

  UniqueFd fd_;
};

// Rank 0 of a world whose other ranks are Peers.
class Root {
 public:
  explicit Root(int size) : engine_(OptionsOf(size)) {
    TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
    ControlOptions options;
    options.self = Identity{0, size, 7};
    options.root = listener.address();
    options.key = TcpWorld::Key();
    control_ = TakeOrDie(ControlConnections::Create(options, std::move(listener), &engine_));
    engine_.Attach(control_.get());
    Status started;
    std::thread starting([&] { started = control_->Start(Deadline::After(60)); });
    for (int rank = 1; rank < size; ++rank) peers.push_back(std::make_unique<Peer>(options.root, rank));
    starting.join();
    EXPECT_TRUE(started.ok()) << started.message();
  }
  ~Root() {
    peers.clear();
    engine_.Shutdown(10);
  }

  // Messages of each type that all peers together get until one of type `last`, or the end.
  std::map<Message, int> CountUntil(Message last) {
    std::map<Message, int> counts;
    for (const auto& peer : peers) peer->ReadUntil(last, &counts);
    return counts;
  }
  void Say(Message type, const std::string& payload) { control_->Send(0, static_cast<uint8_t>(type), payload); }
  Engine& engine() { return engine_; }

  std::vector<std::unique_ptr<Peer>> peers;

 private:
  static EngineOptions OptionsOf(int size) {
    EngineOptions options;
    options.stall_warning_s = 0.2;
    options.topology = MakeTopology(0, std::vector<std::string>(static_cast<size_t>(size), "node"));
    return options;
  }

  Engine engine_;
  std::unique_ptr<ControlConnections> control_;
};

class RootMessagesTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!AllowDescriptors(2 * static_cast<rlim_t>(GetParam()) + 200)) GTEST_SKIP() << "too few descriptors";
  }
  int others() const { return GetParam() - 1; }
};

INSTANTIATE_TEST_SUITE_P(Sizes, RootMessagesTest, ::testing::Values(3, 64, 256));

TEST_P(RootMessagesTest, AnOperationByNameCostsEachRankOne) {
  Root root(GetParam());
  Request request;
  request.name = request.view = "w";
  request.timeout_s = 60;
  for (const auto& peer : root.peers) peer->Say(Message::kRequest, Encode(request));
  root.Say(Message::kRequest, Encode(request));
  EXPECT_EQ(root.CountUntil(Message::kDecision), (std::map<Message, int>{{Message::kDecision, others()}}));
}

TEST_P(RootMessagesTest, RanksThatJoinAfterTheSameOperationCostEachRankTwo) {
  Root root(GetParam());
  for (int phase = 0; phase < 2; ++phase) {
    root.Say(Message::kJoin, Encode(Progress{{0, 5}}));
    for (const auto& peer : root.peers) peer->Say(Message::kJoin, Encode(Progress{{0, 5}}));
    std::map<Message, int> counts = root.CountUntil(Message::kAllJoined);
    EXPECT_EQ(counts[Message::kAllJoined], others());
    EXPECT_LE(counts[Message::kJoined], others());
    EXPECT_LE(counts.size(), 2u);
  }
}

TEST_P(RootMessagesTest, RanksThatLeaveAfterTheSameOperationCostEachRankTwo) {
  Root root(GetParam());
  for (const auto& peer : root.peers) peer->Say(Message::kLeave, Encode(Progress{{0, 5}}));
  std::thread ending([&] { root.engine().Shutdown(60); });
  std::map<Message, int> counts = root.CountUntil(static_cast<Message>(0));
  root.peers.clear();
  ending.join();
  // The first one that leaves, and rank 0.
  EXPECT_GE(counts[Message::kLeft], others());
  EXPECT_LE(counts[Message::kLeft], 2 * others());
  EXPECT_EQ(counts.size(), 1u);
}

TEST(RootMessagesTest, AWrongMessageIsAnErrorThatNamesItsSender) {
  Root root(3);
  ZeroContribution contribution;  // a barrier
  root.peers[1]->Say(Message::kMissing, Encode(contribution));
  const Status failure = root.engine().failure().WaitFor(Deadline::After(60));
  EXPECT_EQ(failure.code(), Code::kProtocol);
  EXPECT_EQ(failure.peer(), 2);
  EXPECT_EQ(failure.message().rfind("rank 2: control message 16: ", 0), 0u) << failure.message();
}

TEST(RootMessagesTest, WhatOnlyRankZeroSaysIsNotTakenFromAnotherRank) {
  for (const Message type : {Message::kFailed, Message::kDecision, Message::kLeft, Message::kAllJoined}) {
    Root root(3);
    root.peers[0]->Say(type, Encode(Status(Code::kIo, "x")));
    const Status failure = root.engine().failure().WaitFor(Deadline::After(60));
    EXPECT_EQ(failure.code(), Code::kProtocol);
    EXPECT_EQ(failure.peer(), 1);
    EXPECT_NE(failure.message().find("only rank 0 sends it"), std::string::npos) << failure.message();
  }
}

TEST(RootMessagesTest, ADepartureOfARankThatThereIsNotIsRefused) {
  Root root(3);
  root.Say(Message::kLeft, Encode(Left{3, {{0, 5}}}));
  const Status failure = root.engine().failure().WaitFor(Deadline::After(60));
  EXPECT_EQ(failure.code(), Code::kProtocol);
  EXPECT_NE(failure.message().find("rank 3 of a world of 3"), std::string::npos) << failure.message();
}

Request Named(const std::string& name) {
  Request request;
  request.name = request.view = name;
  request.timeout_s = 60;
  return request;
}

Standstill InDirectCall() { return {true, 0, {{0, 4}}, {{0, 4, 1, "allreduce 'metrics'"}}}; }

TEST(RootMessagesTest, ADeadlockEndsTheJobOnceAllHaveSaidSoTwice) {
  Root root(2);
  Peer& other = *root.peers[0];
  root.Say(Message::kRequest, Encode(Named("gradients")));
  other.Say(Message::kStandstill, Encode(InDirectCall()));
  std::map<Message, int> counts;
  other.ReadUntil(Message::kStandstillQuery, &counts);
  EXPECT_EQ(root.engine().failure().failed(), false);
  other.Say(Message::kStandstill, Encode(InDirectCall()));
  const Status failure = root.engine().failure().WaitFor(Deadline::After(60));
  EXPECT_EQ(failure.code(), Code::kMismatch);
  EXPECT_NE(failure.message().find("rank 0: gradients; rank 1: allreduce 'metrics'"), std::string::npos)
      << failure.message();
  other.ReadUntil(Message::kFailed, &counts);
}

TEST(RootMessagesTest, ARankThatGoesOnWhenAskedKeepsTheJobRunning) {
  Root root(2);
  Peer& other = *root.peers[0];
  root.Say(Message::kRequest, Encode(Named("gradients")));
  other.Say(Message::kStandstill, Encode(InDirectCall()));
  std::map<Message, int> counts;
  other.ReadUntil(Message::kStandstillQuery, &counts);
  other.Say(Message::kStandstill, Encode(Standstill()));
  other.Say(Message::kRequest, Encode(Named("gradients")));
  other.ReadUntil(Message::kDecision, &counts);
  EXPECT_EQ(counts[Message::kStandstillQuery], 1);
  EXPECT_FALSE(root.engine().failure().failed());
}

}  // namespace
}  // namespace tfc
