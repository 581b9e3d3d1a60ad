// What only the TCP transport has; the rest is in the contract suite.
#include "collectives/transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collectives/transport/frame.h"
#include "collectives/transport/tcp/peer_link.h"
#include "collectives/transport/tcp/send_stream.h"
#include "collectives/transport/tcp/socket_options.h"
#include "collectives/transport/tcp/tcp_listener.h"
#include "testing/own_network.h"
#include "testing/tcp_world.h"

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
    SetUpTransport();
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    peer_ = UniqueFd(fds[1]);
    ASSERT_TRUE(transport_->AddConnection(1, UniqueFd(fds[0])).ok());
  }

  // Without a connection.
  void SetUpTransport() {
    TcpTransportOptions options;
    options.self = Identity{0, 2, 7};
    options.key = TcpWorld::Key();
    options.addresses = {SocketAddress::Parse("10.0.0.6:1000").Take(), SocketAddress::Parse("10.0.0.7:3412").Take()};
    options.max_unexpected_bytes = kRoom;
    transport_ = TakeOrDie(TcpTransport::Create(options));
  }

  static FrameHeader HeaderOf(const Tag& tag, uint64_t length, FrameKind kind = FrameKind::kEager,
                              uint64_t returned = 0) {
    return FrameHeader{kFrameMagic, tag.channel, tag.step, kind, tag.sequence, tag.signature, 7, length, returned};
  }
  void Say(const void* data, size_t size) {
    EXPECT_EQ(::send(peer_.get(), data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  void SayHeader(const FrameHeader& header) { Say(&header, sizeof(header)); }
  void SayMessage(const Tag& tag, const Bytes& bytes, FrameKind kind = FrameKind::kEager) {
    SayHeader(HeaderOf(tag, bytes.size(), kind));
    Say(bytes.data(), bytes.size());
  }
  // The next frame of the transport, which has written it already.
  FrameHeader Heard(FrameKind kind, const Tag& tag) {
    FrameHeader header;
    EXPECT_EQ(::recv(peer_.get(), &header, sizeof(header), MSG_DONTWAIT), static_cast<ssize_t>(sizeof(header)));
    EXPECT_EQ(header.magic, kFrameMagic);
    EXPECT_EQ(header.kind, kind);
    EXPECT_EQ(header.step, tag.step);
    return header;
  }
  FrameHeader HeardMessage(FrameKind kind, const Tag& tag, const Bytes& expected) {
    const FrameHeader header = Heard(kind, tag);
    Bytes bytes(expected.size());
    EXPECT_EQ(::recv(peer_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(bytes, expected);
    return header;
  }
  void ExpectSilence() {
    char byte = 0;
    EXPECT_EQ(::recv(peer_.get(), &byte, 1, MSG_DONTWAIT), -1);
  }
  // Lets the transport read what has been said.
  Status Look() {
    TFC_RETURN_IF_ERROR(transport_->Poll(Deadline::After(0)));  // returns at once for what has happened before
    return transport_->Poll(Deadline::After(0.05));
  }
  void ExpectProtocolError(const std::string& part) {
    Bytes in(8);
    const Result<Ticket> ticket = transport_->PostReceive(1, Step(999), Of(&in));
    const Status status = ticket.ok() ? transport_->Wait(ticket.value(), Soon()) : ticket.status();
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_EQ(status.peer(), 1);
    EXPECT_EQ(status.message().rfind("rank 1 (10.0.0.7:3412): it ", 0), 0u) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  static constexpr size_t kRoom = 4000;

  std::unique_ptr<TcpTransport> transport_;
  UniqueFd peer_;
};

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

TEST_F(ScriptedPeer, MoreThanTheRoomIsAProtocolError) {
  SayMessage(Step(0), Bytes(3000));
  SayMessage(Step(1), Bytes(900));  // its header does not fit
  ExpectProtocolError("sent a message of 900 bytes for which it had no room here (channel 0, operation 1, step 1)");
}

TEST_F(ScriptedPeer, ManyEmptyMessagesFillTheRoom) {
  for (uint32_t step = 0; step <= kRoom / sizeof(FrameHeader); ++step) SayMessage(Step(step), {});
  ExpectProtocolError("for which it had no room here");
}

TEST_F(ScriptedPeer, RoomIsReturnedWithTheNextFrame) {
  for (uint32_t step = 0; step < 20; ++step) {
    const Bytes out(3000, static_cast<std::byte>(step)), own(1);
    SayMessage(Step(step), out);
    ASSERT_TRUE(Look().ok());
    Bytes in(3000);
    EXPECT_TRUE(Receive(*transport_, 1, Step(step), &in).ok());
    EXPECT_EQ(in, out);
    const Ticket sent = TakeOrDie(transport_->PostSend(1, Step(step), Of(own)));
    const uint64_t since = 3000 + sizeof(FrameHeader) + (step == 0 ? 0 : sizeof(FrameHeader));
    EXPECT_EQ(HeardMessage(FrameKind::kEager, Step(step), own).returned, since);
    SayHeader(HeaderOf(Step(100 + step), 0, FrameKind::kEager, 1 + sizeof(FrameHeader)));
    EXPECT_TRUE(Receive(*transport_, 1, Step(100 + step), std::vector<Bytes>(1).data()).ok());
    EXPECT_TRUE(transport_->Wait(sent, Soon()).ok());
  }
}

// A rank may close its connections when its requests are done, and what reaches it then resets them.
TEST_F(ScriptedPeer, NothingIsSaidToAPeerThatDoesNotWaitForIt) {
  for (uint32_t step = 0; step < 3; ++step) {
    Bytes in(1000);
    SayMessage(Step(step), in);
    EXPECT_TRUE(Receive(*transport_, 1, Step(step), &in).ok());
  }
  ExpectSilence();
}

TEST_F(ScriptedPeer, WhoAsksIsAnsweredWithWhatIsFree) {
  Bytes in(1000);
  SayMessage(Step(0), in);
  EXPECT_TRUE(Receive(*transport_, 1, Step(0), &in).ok());
  SayMessage(Step(1), in, FrameKind::kAsking);  // kept
  ASSERT_TRUE(Look().ok());
  EXPECT_EQ(Heard(FrameKind::kAnswer, Step(1)).returned, 1000 + sizeof(FrameHeader));
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(2), Of(&in)));
  SayMessage(Step(2), in, FrameKind::kAsking);
  EXPECT_TRUE(transport_->Wait(ticket, Soon()).ok());
  EXPECT_EQ(Heard(FrameKind::kAnswer, Step(2)).returned, 1000 + sizeof(FrameHeader)) << "before the receive is done";
}

TEST_F(ScriptedPeer, AnAnnouncedMessageIsAskedForWhenItsReceiveIsPosted) {
  const Bytes out(50000, std::byte{5});
  SayHeader(HeaderOf(Step(0), out.size(), FrameKind::kAnnounce));
  ASSERT_TRUE(Look().ok());
  ExpectSilence();
  Bytes in(out.size());
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  EXPECT_EQ(Heard(FrameKind::kGrant, Step(0)).length, out.size());
  SayMessage(Step(0), out, FrameKind::kGranted);
  EXPECT_TRUE(transport_->Wait(ticket, Soon()).ok());
  EXPECT_EQ(in, out);
}

TEST_F(ScriptedPeer, AnAnnouncedMessageWhoseReceiveIsPostedIsAskedForAtOnce) {
  const Bytes out(50000, std::byte{5});
  Bytes in(out.size());
  const Ticket ticket = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
  SayHeader(HeaderOf(Step(0), out.size(), FrameKind::kAnnounce));
  ASSERT_TRUE(Look().ok());
  EXPECT_EQ(Heard(FrameKind::kGrant, Step(0)).length, out.size());
  SayMessage(Step(0), out, FrameKind::kGranted);
  EXPECT_TRUE(transport_->Wait(ticket, Soon()).ok());
  EXPECT_EQ(in, out);
}

TEST_F(ScriptedPeer, AnAnnouncementOfAnotherLengthIsAMismatch) {
  SayHeader(HeaderOf(Step(0), ~uint64_t{0}, FrameKind::kAnnounce));
  ASSERT_TRUE(Look().ok());
  Bytes in(8);
  EXPECT_EQ(Receive(*transport_, 1, Step(0), &in).code(), Code::kMismatch);
}

TEST_F(ScriptedPeer, AnAnnouncementCausesNoWakeUps) {
  SayHeader(HeaderOf(Step(0), 5000, FrameKind::kAnnounce));
  ASSERT_TRUE(Look().ok());
  const std::clock_t begin = std::clock();
  ASSERT_TRUE(transport_->Poll(Deadline::After(0.3)).ok());
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.1);
}

TEST_F(ScriptedPeer, AnnouncementsAreCounted) {
  for (uint32_t i = 0; i <= SendStream::kMaxAnnounced; ++i) {
    SayHeader(HeaderOf(Step(1000 + i), 5000, FrameKind::kAnnounce));
    if (i % 256 == 255) ASSERT_TRUE(Look().ok());
  }
  ExpectProtocolError("announced more than 16384 messages");
}

TEST_F(ScriptedPeer, TwoAnnouncementsWithOneTagAreAProtocolError) {
  SayHeader(HeaderOf(Step(0), 5000, FrameKind::kAnnounce));
  SayHeader(HeaderOf(Step(0), 5000, FrameKind::kAnnounce));
  ExpectProtocolError("sent two messages with one tag");
}

TEST_F(ScriptedPeer, WhatWasNotAskedForIsAProtocolError) {
  SayMessage(Step(0), Bytes(10), FrameKind::kGranted);
  ExpectProtocolError("sent a message that this rank has not asked for");
}

TEST_F(ScriptedPeer, AGrantOfNothingIsAProtocolError) {
  SayHeader(HeaderOf(Step(0), 10, FrameKind::kGrant));
  ExpectProtocolError("asked for a message that this rank has not announced");
}

TEST_F(ScriptedPeer, AnAnswerToNothingIsAProtocolError) {
  SayHeader(HeaderOf(Step(0), 10, FrameKind::kAnswer));
  ExpectProtocolError("answered a message that did not ask");
}

TEST_F(ScriptedPeer, ReturningTooMuchIsAProtocolError) {
  SayHeader(HeaderOf(Step(0), 0, FrameKind::kEager, 1));
  ExpectProtocolError("returned more room than this rank had taken");
}

TEST_F(ScriptedPeer, AnUnknownKindIsAProtocolError) {
  SayHeader(HeaderOf(Step(0), 0, static_cast<FrameKind>(6)));
  ExpectProtocolError("sent something that is no message");
}

TEST_F(ScriptedPeer, WhatDoesNotFitIsAnnouncedAndLetsOthersPass) {
  const Bytes large(50000, std::byte{1}), small(10, std::byte{2});
  const Ticket first = TakeOrDie(transport_->PostSend(1, Step(0), Of(large)));
  const Ticket second = TakeOrDie(transport_->PostSend(1, Step(1), Of(small)));
  EXPECT_EQ(Heard(FrameKind::kAnnounce, Step(0)).length, large.size());
  HeardMessage(FrameKind::kEager, Step(1), small);
  EXPECT_TRUE(transport_->Wait(second, Soon()).ok());
  EXPECT_FALSE(TakeOrDie(transport_->Test(first)));
  SayHeader(HeaderOf(Step(0), large.size(), FrameKind::kGrant));
  EXPECT_TRUE(transport_->Wait(first, Soon()).ok());
  HeardMessage(FrameKind::kGranted, Step(0), large);
}

TEST_F(ScriptedPeer, AGrantOfAnotherLengthIsAProtocolError) {
  const Bytes large(50000);
  TakeOrDie(transport_->PostSend(1, Step(0), Of(large)));
  SayHeader(HeaderOf(Step(0), 49999, FrameKind::kGrant));
  ExpectProtocolError("asked for a message that this rank has not announced");
}

TEST_F(ScriptedPeer, ASenderAsksWhenHalfOfTheRoomIsTaken) {
  const Bytes out(1000, std::byte{3});
  std::vector<Ticket> sends;
  for (uint32_t step = 0; step < 3; ++step) sends.push_back(TakeOrDie(transport_->PostSend(1, Step(step), Of(out))));
  HeardMessage(FrameKind::kEager, Step(0), out);
  HeardMessage(FrameKind::kAsking, Step(1), out);
  HeardMessage(FrameKind::kEager, Step(2), out);  // one question at a time
  EXPECT_TRUE(transport_->Wait(sends[0], Soon()).ok());
  EXPECT_TRUE(transport_->Wait(sends[2], Soon()).ok());
  EXPECT_FALSE(TakeOrDie(transport_->Test(sends[1])));
  SayHeader(HeaderOf(Step(1), 1000, FrameKind::kAnswer, 3 * (1000 + sizeof(FrameHeader))));
  EXPECT_TRUE(transport_->Wait(sends[1], Soon()).ok());
  TakeOrDie(transport_->PostSend(1, Step(3), Of(out)));
  HeardMessage(FrameKind::kEager, Step(3), out);
}

TEST_F(ScriptedPeer, AnAnswerThatIsGivenTwiceIsAProtocolError) {
  const Bytes out(3000);
  const Ticket ticket = TakeOrDie(transport_->PostSend(1, Step(0), Of(out)));
  HeardMessage(FrameKind::kAsking, Step(0), out);
  SayHeader(HeaderOf(Step(0), 3000, FrameKind::kAnswer));
  EXPECT_TRUE(transport_->Wait(ticket, Soon()).ok());
  SayHeader(HeaderOf(Step(0), 3000, FrameKind::kAnswer));
  ExpectProtocolError("answered a message that did not ask");
}

TEST_F(ScriptedPeer, TheLossOfAPeerEndsAnAnnouncedSend) {
  const Bytes large(50000);
  const Ticket ticket = TakeOrDie(transport_->PostSend(1, Step(0), Of(large)));
  peer_.Reset();
  const Status status = transport_->Wait(ticket, Soon());
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 1);
}

TEST_F(ScriptedPeer, ADeadlineNamesThePeerThatDoesNotAskForAMessage) {
  const Bytes large(50000);
  const Ticket ticket = TakeOrDie(transport_->PostSend(1, Step(0), Of(large)));
  const Status status = transport_->Wait(ticket, Deadline::After(0.05));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "rank 1 (10.0.0.7:3412) has taken 0 of 50000 bytes");
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
  SayHeader(HeaderOf(Step(0), ~uint64_t{0}));
  ExpectProtocolError("for which it had no room here");
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

TEST(TcpTransportTest, AConnectionThatGotLostInTheHandshakeIsMadeAgain) {
  TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  AcceptorOptions door;
  door.key = TcpWorld::Key();
  door.self = Identity{0, 2, 7};
  TcpTransportOptions options;
  options.self = Identity{1, 2, 7};
  options.key = TcpWorld::Key();
  options.addresses = {listener.address(), listener.address()};
  const auto peer = TakeOrDie(TcpTransport::Create(options));
  options.self = door.self;
  const auto root = TakeOrDie(TcpTransport::Create(options));
  std::unique_ptr<AcceptingThread> accepting;
  std::thread other([&] {
    for (int dropped = 0; dropped < 3;) dropped += TakeOrDie(listener.Accept()).fd.valid() ? 1 : 0;
    accepting = std::make_unique<AcceptingThread>(TakeOrDie(Acceptor::Create(std::move(listener), door)), root.get());
  });
  const Bytes out(10, std::byte{1});
  Bytes in(10);
  const Ticket send = TakeOrDie(peer->PostSend(0, Step(0), Of(out)));
  const Status sent = peer->Wait(send, Soon());
  EXPECT_TRUE(sent.ok()) << sent.message();
  other.join();
  EXPECT_TRUE(Receive(*root, 1, Step(0), &in).ok());
  EXPECT_EQ(in, out);
}

// Else each message would be read for twice from then on.
TEST(PeerLinkTest, TheEndOfALostAttemptIsNotThatOfTheNextOne) {
  TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  AcceptorOptions door;
  door.key = TcpWorld::Key();
  door.self = Identity{0, 2, 7};
  PeerLink link(0, listener.address(), PeerLink::Options{7, 4000});
  ASSERT_TRUE(link.Connect(Hello{Purpose::kData, 7, 1, 0}, door.key, Soon()).ok());
  bool progress = false;
  const auto turn = [&] {  // what a transport does, without edges
    pollfd ready = {link.fd(), POLLIN | POLLOUT | POLLRDHUP, 0};
    if (::poll(&ready, 1, 10) > 0) link.Notice(static_cast<uint32_t>(ready.revents));
    if (link.state() == PeerLink::State::kConnecting && link.connect_deadline().Passed()) link.Notice(POLLOUT);
    return !link.Ready() || link.Pump(false, &progress).ok();
  };
  while (!TakeOrDie(listener.Accept()).fd.valid()) std::this_thread::yield();  // and drops it
  while (link.fd() >= 0) ASSERT_TRUE(turn());
  const auto acceptor = TakeOrDie(Acceptor::Create(std::move(listener), door));
  std::vector<Accepted> accepted;
  while (link.state() != PeerLink::State::kOpen || accepted.empty()) {
    ASSERT_TRUE(turn());
    for (Accepted& one : TakeOrDie(acceptor->Advance())) accepted.push_back(std::move(one));
  }
  ASSERT_TRUE(turn());
  const FrameHeader header{kFrameMagic, 0, 0, FrameKind::kEager, 1, 99, 7, 0, 0};
  ASSERT_EQ(::send(accepted.front().fd.get(), &header, sizeof(header), MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof(header)));
  progress = false;
  while (!progress) ASSERT_TRUE(turn());
  EXPECT_FALSE(link.Ready());
}

// The same with nothing under way but the acceptor's last word in the handshake.
TEST_F(ScriptedPeer, IsLostIfItsHostIsCutOffAtTheEndOfTheHandshake) {
  if (std::getenv("TFC_TEST_LATE_SECONDS") == nullptr) GTEST_SKIP() << "takes 12 s: make test-late";
  peer_.Reset();
  SetUpTransport();
  bool alone = false;
  std::thread([&] {
    alone = ::unshare(CLONE_NEWNET) == 0;
    if (!alone) return;
    ASSERT_TRUE(SetLoopback(true));
    const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
    const UniqueFd peer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(peer.get(), listener.address().raw(), listener.address().raw_size()), 0);
    UniqueFd mine = std::move(TakeOrDie(listener.Accept()).fd);
    ASSERT_TRUE(ConfigureConnection(mine.get()).ok());
    ASSERT_TRUE(SetLoopback(false));
    ASSERT_EQ(::send(mine.get(), "x", 1, MSG_NOSIGNAL), 1);
    ASSERT_TRUE(transport_->AddConnection(1, std::move(mine)).ok());
    Bytes in(8);
    const Ticket receive = TakeOrDie(transport_->PostReceive(1, Step(0), Of(&in)));
    const Status status = transport_->Wait(receive, Deadline::After(40));  // 15 on a machine that is not busy
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
  }).join();
  if (!alone) GTEST_SKIP() << "a network of its own needs CAP_SYS_ADMIN";
}

// Keepalive rests while something is under way, and here that is nothing but the request for an announced message.
TEST(TcpTransportTest, APeerIsLostWhoseHostIsCutOffBeforeItIsAskedForAMessage) {
  if (std::getenv("TFC_TEST_LATE_SECONDS") == nullptr) GTEST_SKIP() << "takes 15 s: make test-late";
  bool alone = false;
  std::thread([&] {
    alone = ::unshare(CLONE_NEWNET) == 0;  // for the threads that this one starts, too
    if (!alone) return;
    ASSERT_TRUE(SetLoopback(true));
    TcpWorldOptions options;
    options.max_unexpected_bytes = 1000;
    TcpWorld world(2, options);
    const Bytes out(5000);
    Bytes in(5000);
    (void)TakeOrDie(world.Tcp(1).PostSend(0, Step(0), Of(out)));
    for (const Deadline quiet = Deadline::After(3); !quiet.Passed();)  // all is acknowledged, and seen to be
      for (const int rank : {0, 1}) ASSERT_TRUE(world.Tcp(rank).Poll(Deadline::After(0.05)).ok());
    ASSERT_TRUE(SetLoopback(false));
    const Ticket receive = TakeOrDie(world.Tcp(0).PostReceive(1, Step(0), Of(&in)));
    const Status status = world.Tcp(0).Wait(receive, Deadline::After(40));  // 15 on a machine that is not busy
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    EXPECT_EQ(status.peer(), 1);
  }).join();
  if (!alone) GTEST_SKIP() << "a network of its own needs CAP_SYS_ADMIN";
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
  world.Kill(2);  // no rank waits for it
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

// Both ranks send messages of many channels, of sizes around every limit, and receive them in an order of their own.
// All sends are posted before the first receive, so most of what is sent finds no receive and no room.
class LateReceives : public testing::TestWithParam<int> {};

struct Planned {
  Tag tag;
  size_t size;
  std::byte fill;
};

std::vector<Planned> PlanMessages(int seed, size_t room) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  const size_t sizes[] = {0, 1, 100, room / 16, room / 2, room - sizeof(FrameHeader), room, room + 1, 3 * room};
  std::vector<Planned> messages;
  for (uint32_t i = 0; i < 300; ++i) {
    const size_t size = sizes[random() % std::size(sizes)];
    messages.push_back(
        Planned{Tag{static_cast<uint32_t>(random() % 20), i, 1, 5}, size, static_cast<std::byte>(random())});
  }
  return messages;
}

void ExchangeInAnyOrder(TcpTransport& transport, const std::vector<Planned>& messages, uint32_t seed) {
  const int peer = 1 - transport.rank();
  std::mt19937 random(seed);
  std::vector<Bytes> out, in;
  std::vector<Ticket> open;
  for (const Planned& message : messages) {
    out.emplace_back(message.size, message.fill);
    in.emplace_back(message.size);
  }
  std::vector<size_t> order(messages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const size_t i : order) open.push_back(TakeOrDie(transport.PostSend(peer, messages[i].tag, Of(out[i]))));
  std::shuffle(order.begin(), order.end(), random);
  const Deadline deadline = Deadline::After(60);
  while ((!order.empty() || !open.empty()) && !deadline.Passed()) {
    for (size_t i = random() % 4; i > 0 && !order.empty(); --i) {
      const size_t next = order.back();
      order.pop_back();
      open.push_back(TakeOrDie(transport.PostReceive(peer, messages[next].tag, Of(&in[next]))));
    }
    for (size_t i = open.size(); i-- > 0;) {
      if (!TakeOrDie(transport.Test(open[i]))) continue;
      ASSERT_TRUE(transport.Wait(open[i], deadline).ok());
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (order.empty() && open.empty()) break;
    ASSERT_TRUE(transport.Poll(order.empty() ? deadline : Deadline::After(0)).ok());
  }
  ASSERT_FALSE(deadline.Passed());
  for (size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(in[i], Bytes(messages[i].size, messages[i].fill)) << i;
}

TEST_P(LateReceives, AllArriveInAnyOrder) {
  constexpr size_t kRoom = 20000;
  TcpWorldOptions options;
  options.max_unexpected_bytes = kRoom;
  TcpWorld world(2, options);
  const std::vector<Planned> messages = PlanMessages(GetParam(), kRoom);
  world.RunAll([&](Transport& transport) {
    ExchangeInAnyOrder(static_cast<TcpTransport&>(transport), messages,
                       static_cast<uint32_t>(GetParam() * 2 + transport.rank()));
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, LateReceives, testing::Range(0, 20));

// The whole of what one rank has sent arrives, however early it leaves: its last send may be the one that asks.
TEST(TcpTransportTest, ARankMayLeaveAsSoonAsItsSendsAreDone) {
  for (int round = 0; round < 20; ++round) {
    TcpWorldOptions options;
    options.max_unexpected_bytes = size_t{1} << 20;
    TcpWorld world(2, options);
    const size_t size = (size_t{1} << 20) * (static_cast<size_t>(round) % 4 + 1) / 2;
    world.RunAll([&](Transport& transport) {
      const Bytes out(size, std::byte{9});
      if (transport.rank() == 0) {
        std::vector<Ticket> sends;
        for (uint32_t step = 0; step < 6; ++step)
          sends.push_back(TakeOrDie(transport.PostSend(1, Step(step), Of(out))));
        for (const Ticket ticket : sends) EXPECT_TRUE(transport.Wait(ticket, Soon()).ok());
        world.Kill(0);
        return;
      }
      for (uint32_t step = 0; step < 6; ++step) {
        Bytes in(size);
        const Status status = Receive(transport, 0, Step(step), &in);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(in, out);
      }
    });
  }
}

// A sender keeps what goes beyond the announcements that a receiver remembers.
TEST(TcpTransportTest, MoreSendsThanCanBeAnnouncedWaitForTheirTurn) {
  TcpWorldOptions options;
  options.max_unexpected_bytes = 1000;
  TcpWorld world(2, options);
  constexpr uint32_t kMessages = SendStream::kMaxAnnounced + 2000;
  world.RunAll([](Transport& transport) {
    const Bytes out(100, std::byte{4});
    std::vector<Ticket> sends;
    if (transport.rank() == 0) {
      for (uint32_t step = 0; step < kMessages; ++step)
        sends.push_back(TakeOrDie(transport.PostSend(1, Step(step), Of(out))));
      for (const Ticket ticket : sends) ASSERT_TRUE(transport.Wait(ticket, Soon()).ok());
      return;
    }
    for (uint32_t step = 0; step < kMessages; ++step) {
      Bytes in(100);
      ASSERT_TRUE(Receive(transport, 0, Step(step), &in).ok());
      ASSERT_EQ(in, out);
    }
  });
}

}  // namespace
}  // namespace tfc
