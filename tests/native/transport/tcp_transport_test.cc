// What only the TCP transport has; the rest is in the contract suite.
#include "transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "testing/tcp_world.h"
#include "transport/frame.h"

namespace tfc {
namespace {

using Bytes = std::vector<std::byte>;

Deadline Soon() { return Deadline::After(20); }

Tag Step(uint32_t step) { return Tag{0, step, 1, 99}; }

ConstSpans Of(Bytes&&) = delete;  // a posted span must outlive its request
ConstSpans Of(const Bytes& bytes) { return {ConstSpan{bytes.data(), bytes.size()}}; }
MutableSpans Of(Bytes* bytes) { return {MutableSpan{bytes->data(), bytes->size()}}; }

Status Receive(Transport& transport, int peer, const Tag& tag, Bytes* bytes) {
  const Result<Ticket> ticket = transport.PostReceive(peer, tag, Of(bytes));
  return ticket.ok() ? transport.Wait(ticket.value(), Soon()) : ticket.status();
}

// A transport of rank 0 of 2 whose only peer is played by the test, byte by byte.
class ScriptedPeer : public testing::Test {
 protected:
  void SetUp() override {
    TcpTransportOptions options;
    options.self = Identity{0, 2, 7};
    options.key = TcpWorld::Key();
    options.addresses = {SocketAddress::Parse("10.0.0.6:1000").Take(), SocketAddress::Parse("10.0.0.7:3412").Take()};
    options.max_unexpected_bytes = 1000;
    transport_ = TakeOrDie(TcpTransport::Create(options));
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    peer_ = UniqueFd(fds[1]);
    ASSERT_TRUE(transport_->AddConnection(1, UniqueFd(fds[0])).ok());
  }

  static FrameHeader HeaderOf(const Tag& tag, uint64_t length) {
    return FrameHeader{kFrameMagic, tag.channel, tag.step, 0, tag.sequence, tag.signature, 7, length};
  }
  void Say(const void* data, size_t size) {
    EXPECT_EQ(::send(peer_.get(), data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  void SayMessage(const Tag& tag, const Bytes& bytes) {
    const FrameHeader header = HeaderOf(tag, bytes.size());
    Say(&header, sizeof(header));
    Say(bytes.data(), bytes.size());
  }

  std::unique_ptr<TcpTransport> transport_;
  UniqueFd peer_;
};

// Drives like the engine does: tests its requests, then polls; never waits for one of them.
TEST_F(ScriptedPeer, AMessageThatArrivedWholeBehindAStallIsFoundWithoutWait) {
  const Bytes large(1000, std::byte{1}), small(10, std::byte{2});
  SayMessage(Step(0), large);
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.2)).ok());
  SayMessage(Step(1), small);  // no room for it, but all of it has been read
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.2)).ok());
  Bytes in_large(1000), in_small(10);
  const Ticket first = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in_large)));
  const Ticket second = TakeOrDie(transport_->PostReceive(1, Step(1), Of(&in_small)));
  const Deadline deadline = Deadline::After(5);
  while (!(TakeOrDie(transport_->Test(first)) && TakeOrDie(transport_->Test(second))) && !deadline.Passed()) {
    ASSERT_TRUE(transport_->Poll(deadline).ok());
  }
  EXPECT_FALSE(deadline.Passed());
  EXPECT_EQ(in_small, small);
}

TEST_F(ScriptedPeer, MessagesMayComeInAnyPieces) {
  Bytes whole(sizeof(FrameHeader) + 5, std::byte{7});
  const FrameHeader header = HeaderOf(Step(0), 5);
  std::memcpy(whole.data(), &header, sizeof(header));
  Bytes in(5);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  for (const std::byte byte : whole) {
    EXPECT_FALSE(TakeOrDie(transport_->Test(ticket)));
    Say(&byte, 1);
  }
  EXPECT_TRUE(transport_->Wait(ticket, Soon()).ok());
  EXPECT_EQ(in, Bytes(5, std::byte{7}));
}

TEST_F(ScriptedPeer, AReceiveMayBePostedInTheMiddleOfItsMessage) {
  const FrameHeader header = HeaderOf(Step(0), 100);
  const Bytes half(50, std::byte{1});
  Say(&header, sizeof(header));
  Say(half.data(), half.size());
  ASSERT_TRUE(transport_->Poll(Soon()).ok());
  Bytes in(100);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  EXPECT_FALSE(TakeOrDie(transport_->Test(ticket)));
  Say(half.data(), half.size());
  EXPECT_TRUE(transport_->Wait(ticket, Soon()).ok());
  EXPECT_EQ(in, Bytes(100, std::byte{1}));
}

TEST_F(ScriptedPeer, NoMoreThanTheLimitIsKeptAndNothingIsLost) {
  const Bytes big(800, std::byte{1});
  const Bytes more(5000, std::byte{2});
  SayMessage(Step(0), big);
  SayMessage(Step(1), more);  // does not fit beside it, nor alone
  SayMessage(Step(2), big);
  Bytes in(800);
  Bytes in_more(5000);
  const Ticket late = TakeOrDie(transport_->PostReceive(1, Step(2), Of(&in)));
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.02)).ok());
  EXPECT_FALSE(TakeOrDie(transport_->Test(late))) << "the stream waits for somebody to take step 1";
  EXPECT_TRUE(Receive(*transport_, 1, Step(1), &in_more).ok());
  EXPECT_EQ(in_more, more);
  EXPECT_TRUE(transport_->Wait(late, Soon()).ok());
  EXPECT_EQ(in, big);
  EXPECT_TRUE(Receive(*transport_, 1, Step(0), &in).ok());
}

TEST_F(ScriptedPeer, TakingAKeptMessageMakesRoom) {
  const Bytes big(800, std::byte{1});
  SayMessage(Step(0), big);
  SayMessage(Step(1), big);
  Bytes in(800);
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.02)).ok());
  for (uint32_t step = 0; step < 2; ++step) {
    EXPECT_TRUE(Receive(*transport_, 1, Step(step), &in).ok());
    EXPECT_EQ(in, big);
  }
}

TEST_F(ScriptedPeer, AStalledStreamCausesNoWakeUps) {
  SayMessage(Step(0), Bytes(5000));
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.02)).ok());
  const std::clock_t begin = std::clock();
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.3)).ok());
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.1);
}

TEST_F(ScriptedPeer, ClosingNamesRankAndAddress) {
  Bytes in(8);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  const FrameHeader header = HeaderOf(Step(0), 8);
  Say(&header, sizeof(header));
  peer_.Reset();
  const Status status = transport_->Wait(ticket, Soon());
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.message(), "rank 1 (10.0.0.7:3412) closed the connection");
  EXPECT_EQ(status.peer(), 1);
}

TEST_F(ScriptedPeer, ALossIsAnErrorOnlyForWhoNeedsThePeer) {
  peer_.Reset();
  EXPECT_TRUE(transport_->Poll(Deadline::After(0.02)).ok());
  EXPECT_EQ(transport_->PostSend(1, Step(0), {}).status().code(), Code::kPeerLost);
}

TEST_F(ScriptedPeer, NonsenseEndsTheTransport) {
  Bytes in(8);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  Say(Bytes(200, std::byte{'x'}).data(), 200);
  const Status status = transport_->Wait(ticket, Soon());
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_EQ(status.peer(), 1);
}

TEST_F(ScriptedPeer, AnotherGenerationIsAProtocolError) {
  Bytes in(8);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  FrameHeader header = HeaderOf(Step(0), 8);
  header.generation = 6;
  Say(&header, sizeof(header));
  const Status status = transport_->Wait(ticket, Soon());
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_NE(status.message().find("generation 6"), std::string::npos) << status.message();
}

TEST_F(ScriptedPeer, AnAbsurdLengthAllocatesNothing) {
  const FrameHeader header = HeaderOf(Step(0), ~uint64_t{0});
  Say(&header, sizeof(header));
  ASSERT_TRUE(transport_->Poll(Soon()).ok());
  Bytes in(8);
  EXPECT_EQ(Receive(*transport_, 1, Step(0), &in).code(), Code::kMismatch);
}

TEST_F(ScriptedPeer, ADeadlineSaysHowFarItCame) {
  Bytes in(100);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  const FrameHeader header = HeaderOf(Step(0), 100);
  Say(&header, sizeof(header));
  Say(in.data(), 60);
  const Status status = transport_->Wait(ticket, Deadline::After(0.05));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "rank 1 (10.0.0.7:3412) has sent 60 of 100 bytes");
}

TEST_F(ScriptedPeer, OnlyOneConnectionAndOnlyFromHigherRanks) {
  for (const int peer : {1, 0, -1, 2}) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const UniqueFd other(fds[1]);
    EXPECT_EQ(transport_->AddConnection(peer, UniqueFd(fds[0])).code(), Code::kInvalidArgument);
    char byte = 0;
    EXPECT_EQ(::recv(other.get(), &byte, 1, 0), 0) << "a refused connection is closed";
  }
}

TEST_F(ScriptedPeer, WakeEndsPollAndIsNotLostToTest) {
  std::thread other([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that Poll has begun
    transport_->Wake();
  });
  const auto begin = Deadline::Clock::now();
  EXPECT_TRUE(transport_->Poll(Soon()).ok());
  other.join();
  Bytes in(1);
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  transport_->Wake();
  EXPECT_FALSE(TakeOrDie(transport_->Test(ticket)));
  EXPECT_TRUE(transport_->Poll(Soon()).ok());
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(transport_->Poll(Deadline::After(0.01)).ok()) << "one Wake, one return";
}

TEST(TcpTransportTest, RefusesOptionsThatDoNotFit) {
  TcpTransportOptions options;
  options.self = Identity{2, 2, 7};
  options.addresses.resize(2);
  EXPECT_EQ(TcpTransport::Create(options).status().code(), Code::kInvalidArgument);
  options.self = Identity{0, 3, 7};
  EXPECT_EQ(TcpTransport::Create(options).status().code(), Code::kInvalidArgument);
}

TEST(TcpTransportTest, AVanishedListenerIsALostPeer) {
  TcpWorld world(2);
  world.Kill(0);
  Transport& transport = world.At(1);
  Result<Ticket> ticket = transport.PostSend(0, Step(0), {});
  const Status status = ticket.ok() ? transport.Wait(ticket.value(), Soon()) : ticket.status();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 0);
}

TEST(TcpTransportTest, ASilentListenerEndsConnecting) {
  const TcpListener silent = TakeOrDie(TcpListener::Create("127.0.0.1"));
  TcpTransportOptions options;
  options.self = Identity{1, 2, 7};
  options.key = TcpWorld::Key();
  options.addresses = {silent.address(), silent.address()};
  options.connect_seconds = 0.05;
  const auto transport = TakeOrDie(TcpTransport::Create(options));
  const Ticket ticket = TakeOrDie(transport->PostSend(0, Step(0), {}));
  const Status status = transport->Wait(ticket, Soon());
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.peer(), 0);
}

TEST(TcpTransportTest, RanksThatDoNotTalkHaveNoConnection) {
  TcpWorld world(3);
  world.RunAll([](Transport& transport) {
    if (transport.rank() == 2) return;
    const int peer = 1 - transport.rank();
    const Bytes out(1);
    Bytes in(1);
    const Ticket send = TakeOrDie(transport.PostSend(peer, Step(0), Of(out)));
    EXPECT_TRUE(Receive(transport, peer, Step(0), &in).ok());
    EXPECT_TRUE(transport.Wait(send, Soon()).ok());
  });
  world.Kill(2);  // nobody notices
  const Bytes out(1);
  Bytes in(1);
  const Ticket send = TakeOrDie(world.At(0).PostSend(1, Step(1), Of(out)));
  EXPECT_TRUE(Receive(world.At(1), 0, Step(1), &in).ok());
  EXPECT_TRUE(world.At(0).Wait(send, Soon()).ok());
}

// The progress loop of a communicator: many operations at once, driven by Test and Poll.
TEST(TcpTransportTest, PollDrivesManyRequests) {
  TcpWorld world(2);
  world.RunAll([](Transport& transport) {
    auto& tcp = static_cast<TcpTransport&>(transport);
    const int peer = 1 - tcp.rank();
    const Bytes out(100000, std::byte{3});
    std::vector<Bytes> in(20, Bytes(100000));
    std::vector<Ticket> open;
    for (uint32_t i = 0; i < 20; ++i) {
      open.push_back(TakeOrDie(tcp.PostReceive(peer, Tag{i % 4, i, 1, 1}, Of(&in[i]))));
      open.push_back(TakeOrDie(tcp.PostSend(peer, Tag{i % 4, i, 1, 1}, Of(out))));
    }
    const Deadline deadline = Soon();
    while (!open.empty() && !deadline.Passed()) {
      for (size_t i = open.size(); i-- > 0;) {
        if (!TakeOrDie(tcp.Test(open[i]))) continue;
        EXPECT_TRUE(tcp.Wait(open[i], deadline).ok());
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (open.empty()) break;
      EXPECT_TRUE(tcp.Poll(deadline).ok());
    }
    EXPECT_TRUE(open.empty());
    for (const Bytes& bytes : in) EXPECT_EQ(bytes, out);
  });
}

}  // namespace
}  // namespace tfc
