// What every transport promises (transport/transport.h), one suite over all of them.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "testing/tcp_world.h"
#include "testing/transport_world.h"

namespace tfc {
namespace {

using Bytes = std::vector<std::byte>;

struct TransportFactory {
  const char* name;
  std::function<std::unique_ptr<TransportWorld>(int size)> make;
};

Bytes Pattern(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed) * 31 + (i >> 8));
  return bytes;
}

ConstSpans Of(const Bytes& bytes) { return {ConstSpan{bytes.data(), bytes.size()}}; }
MutableSpans Of(Bytes* bytes) { return {MutableSpan{bytes->data(), bytes->size()}}; }

// The pieces of `bytes` in a pattern of sizes that includes empty ones.
MutableSpans Split(Bytes* bytes, size_t pieces) {
  MutableSpans spans;
  size_t at = 0;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t end = i + 1 == pieces ? bytes->size() : std::max(at, bytes->size() * (i + (i % 3)) / (pieces + 2));
    spans.push_back(MutableSpan{bytes->data() + at, end - at});
    at = end;
  }
  return spans;
}

Deadline Soon() { return Deadline::After(20); }  // a test that needs it has failed

Tag Step(uint32_t step) { return Tag{0, step, 1, 99}; }

Status Send(Transport& transport, int peer, const Tag& tag, const ConstSpans& spans) {
  const Result<Ticket> ticket = transport.PostSend(peer, tag, spans);
  return ticket.ok() ? transport.Wait(ticket.value(), Soon()) : ticket.status();
}

Status Receive(Transport& transport, int peer, const Tag& tag, const MutableSpans& spans, Deadline deadline = Soon()) {
  const Result<Ticket> ticket = transport.PostReceive(peer, tag, spans);
  return ticket.ok() ? transport.Wait(ticket.value(), deadline) : ticket.status();
}

void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

class TransportContract : public testing::TestWithParam<TransportFactory> {
 protected:
  std::unique_ptr<TransportWorld> Make(int size) { return GetParam().make(size); }

  // A world of two whose ranks have exchanged a message, so that a connection exists.
  std::unique_ptr<TransportWorld> MakeConnectedPair() {
    std::unique_ptr<TransportWorld> world = Make(2);
    world->RunAll([](Transport& transport) {
      const int peer = 1 - transport.rank();
      const Bytes out(1);
      Bytes in(1);
      const Tag tag{1000, 0, 0, 0};
      ExpectOk(Send(transport, peer, tag, Of(out)));
      ExpectOk(Receive(transport, peer, tag, Of(&in)));
    });
    return world;
  }
};

TEST_P(TransportContract, KnowsItsPlace) {
  const auto world = Make(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world->At(rank).rank(), rank);
    EXPECT_EQ(world->At(rank).size(), 3);
  }
}

TEST_P(TransportContract, MovesBytesBothWays) {
  const auto world = Make(2);
  world->RunAll([](Transport& transport) {
    const int peer = 1 - transport.rank();
    const Bytes out = Pattern(1000, transport.rank());
    Bytes in(1000);
    const Result<Ticket> receive = transport.PostReceive(peer, Step(0), Of(&in));
    ASSERT_TRUE(receive.ok());
    ExpectOk(Send(transport, peer, Step(0), Of(out)));
    ExpectOk(transport.Wait(receive.value(), Soon()));
    EXPECT_EQ(in, Pattern(1000, peer));
  });
}

TEST_P(TransportContract, DeliversManyMessagesInOrder) {
  const auto world = Make(2);
  constexpr uint32_t kMessages = 2000;
  world->RunAll([](Transport& transport) {
    for (uint32_t step = 0; step < kMessages; ++step) {
      Bytes bytes = Pattern(step % 97, static_cast<int>(step));
      if (transport.rank() == 0) {
        ExpectOk(Send(transport, 1, Step(step), Of(bytes)));
      } else {
        Bytes in(bytes.size());
        ExpectOk(Receive(transport, 0, Step(step), Of(&in)));
        ASSERT_EQ(in, bytes) << "message " << step;
      }
    }
  });
}

TEST_P(TransportContract, PicksMessagesByTagNotByOrder) {
  const auto world = Make(2);
  const std::vector<Tag> tags = {{0, 0, 1, 5}, {0, 1, 1, 5}, {0, 0, 2, 5}, {3, 0, 1, 6}};
  world->RunAll([&](Transport& transport) {
    if (transport.rank() == 0) {
      for (size_t i = 0; i < tags.size(); ++i)
        ExpectOk(Send(transport, 1, tags[i], Of(Pattern(64, static_cast<int>(i)))));
      return;
    }
    for (size_t i = tags.size(); i-- > 0;) {
      Bytes in(64);
      ExpectOk(Receive(transport, 0, tags[i], Of(&in)));
      EXPECT_EQ(in, Pattern(64, static_cast<int>(i)));
    }
  });
}

TEST_P(TransportContract, ScattersAndGathersManySpansOfABigMessage) {
  const auto world = Make(2);
  constexpr size_t kSize = size_t{8} << 20;
  world->RunAll([](Transport& transport) {
    const int peer = 1 - transport.rank();
    Bytes out = Pattern(kSize, transport.rank());
    Bytes in(kSize);
    const Result<Ticket> receive = transport.PostReceive(peer, Step(0), Split(&in, 3000));
    const Result<Ticket> send = transport.PostSend(peer, Step(0), AsConst(Split(&out, 1777)));
    ASSERT_TRUE(receive.ok() && send.ok());
    ExpectOk(transport.Wait(receive.value(), Soon()));
    ExpectOk(transport.Wait(send.value(), Soon()));
    EXPECT_EQ(in, Pattern(kSize, peer));
  });
}

TEST_P(TransportContract, MovesEmptyMessages) {
  const auto world = Make(2);
  world->RunAll([](Transport& transport) {
    const int peer = 1 - transport.rank();
    for (uint32_t step = 0; step < 10; ++step) {
      ExpectOk(Send(transport, peer, Step(step), step % 2 == 0 ? ConstSpans{} : ConstSpans{ConstSpan{}}));
      ExpectOk(Receive(transport, peer, Step(step), step % 3 == 0 ? MutableSpans{} : MutableSpans{MutableSpan{}}));
    }
  });
}

TEST_P(TransportContract, KeepsMessagesUntilTheyAreAskedFor) {
  const auto world = Make(2);
  constexpr uint32_t kMessages = 50;
  world->RunAll([](Transport& transport) {
    const int peer = 1 - transport.rank();
    std::vector<Ticket> sends;
    std::vector<Bytes> out;
    for (uint32_t step = 0; step < kMessages; ++step) out.push_back(Pattern(step * step * 20, transport.rank()));
    for (uint32_t step = 0; step < kMessages; ++step) {
      Result<Ticket> ticket = transport.PostSend(peer, Step(step), Of(out[step]));
      ASSERT_TRUE(ticket.ok());
      sends.push_back(ticket.value());
    }
    for (uint32_t step = kMessages; step-- > 0;) {
      Bytes in(step * step * 20);
      ExpectOk(Receive(transport, peer, Step(step), Of(&in)));
      EXPECT_EQ(in, Pattern(in.size(), peer));
    }
    for (const Ticket ticket : sends) ExpectOk(transport.Wait(ticket, Soon()));
  });
}

// Far more than any transport keeps, on one channel, for a rank that has other things to do first.
TEST_P(TransportContract, WhatHasNoReceiveYetHoldsUpNothingElse) {
  const auto world = Make(2);
  constexpr uint32_t kMessages = 20;
  constexpr size_t kSize = size_t{4} << 20;
  world->RunAll([&](Transport& transport) {
    const int peer = 1 - transport.rank();
    const Bytes out = Pattern(kSize, 1);
    std::vector<Ticket> sends;
    if (transport.rank() == 0) {
      for (uint32_t step = 0; step < kMessages; ++step) {
        const Result<Ticket> send = transport.PostSend(1, Tag{1, step, 1, 99}, Of(out));
        ASSERT_TRUE(send.ok());
        sends.push_back(send.value());
      }
    }
    for (uint32_t step = 0; step < 20; ++step) {
      const Bytes ping = Pattern(1000, transport.rank());
      Bytes pong(1000);
      const Result<Ticket> send = transport.PostSend(peer, Tag{2, step, 1, 99}, Of(ping));
      ASSERT_TRUE(send.ok());
      ExpectOk(Receive(transport, peer, Tag{2, step, 1, 99}, Of(&pong)));
      ExpectOk(transport.Wait(send.value(), Soon()));
      ASSERT_EQ(pong, Pattern(1000, peer));
    }
    for (const Ticket ticket : sends) ExpectOk(transport.Wait(ticket, Deadline::After(120)));
    if (transport.rank() == 0) return;
    Bytes in(kSize);
    for (uint32_t step = 0; step < kMessages; ++step) {
      ExpectOk(Receive(transport, 0, Tag{1, step, 1, 99}, Of(&in), Deadline::After(120)));
      ASSERT_EQ(std::memcmp(in.data(), out.data(), kSize), 0);
    }
  });
}

TEST_P(TransportContract, TestTellsWithoutBlockingAndKeepsTheTicket) {
  const auto world = MakeConnectedPair();
  Bytes in(3);
  const Result<Ticket> ticket = world->At(0).PostReceive(1, Step(0), Of(&in));
  ASSERT_TRUE(ticket.ok());
  EXPECT_FALSE(world->At(0).Test(ticket.value()).value());
  ExpectOk(Send(world->At(1), 0, Step(0), Of(Pattern(3, 1))));
  const Deadline deadline = Soon();
  while (!world->At(0).Test(ticket.value()).value()) ASSERT_FALSE(deadline.Passed());
  EXPECT_TRUE(world->At(0).Test(ticket.value()).value());
  ExpectOk(world->At(0).Wait(ticket.value(), Deadline::After(0)));
  EXPECT_EQ(in, Pattern(3, 1));
}

TEST_P(TransportContract, DeadlineNamesThePeer) {
  const auto world = MakeConnectedPair();
  Bytes in(8);
  const auto begin = Deadline::Clock::now();
  const Status status = Receive(world->At(0), 1, Step(0), Of(&in), Deadline::After(0.05));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::milliseconds(50));
}

TEST_P(TransportContract, DeadlineHoldsForAPeerThatNeverCame) {
  const auto world = Make(3);
  Bytes in(8);
  const Status status = Receive(world->At(0), 2, Step(0), Of(&in), Deadline::After(0.05));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.peer(), 2);
}

TEST_P(TransportContract, AnotherSignatureIsAMismatch) {
  for (const bool receive_first : {true, false}) {
    const auto world = MakeConnectedPair();
    Transport& receiver = world->At(0);
    Bytes in(8);
    Status status;
    if (receive_first) {
      const Result<Ticket> ticket = receiver.PostReceive(1, Tag{0, 0, 1, 111}, Of(&in));
      ExpectOk(Send(world->At(1), 0, Tag{0, 0, 1, 222}, Of(Pattern(8, 1))));
      status = receiver.Wait(ticket.value(), Soon());
    } else {
      ExpectOk(Send(world->At(1), 0, Tag{0, 0, 1, 222}, Of(Pattern(8, 1))));
      status = Receive(receiver, 1, Tag{0, 0, 1, 111}, Of(&in));
    }
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.peer(), 1);
    EXPECT_EQ(in, Bytes(8)) << "nothing of another operation may reach the buffer";
  }
}

TEST_P(TransportContract, AnotherLengthIsAMismatch) {
  for (const size_t sent : {size_t{7}, size_t{9}, size_t{0}}) {
    const auto world = MakeConnectedPair();
    Bytes in(8);
    ExpectOk(Send(world->At(1), 0, Step(0), Of(Pattern(sent, 1))));
    const Status status = Receive(world->At(0), 1, Step(0), Of(&in));
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("8"), std::string::npos) << status.message();
  }
}

TEST_P(TransportContract, InterruptEndsAWaitFromAnotherThread) {
  const auto world = MakeConnectedPair();
  Bytes in(8);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // so that the wait has begun
    world->At(0).Interrupt(Status(Code::kAborted, "rank 1 gave up", 1));
    world->At(0).Interrupt(Status(Code::kCancelled, "too late"));
  });
  const Status status = Receive(world->At(0), 1, Step(0), Of(&in));
  other.join();
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.message(), "rank 1 gave up");
  EXPECT_EQ(world->At(0).PostSend(1, Step(1), {}).status().code(), Code::kAborted);
}

TEST_P(TransportContract, APeersDeathEndsAWait) {
  const auto world = MakeConnectedPair();
  Bytes in(8);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // so that the wait has begun
    world->Kill(1);
  });
  const auto begin = Deadline::Clock::now();
  const Status status = Receive(world->At(0), 1, Step(0), Of(&in));
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(10));
  killer.join();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
}

TEST_P(TransportContract, ADeathElsewhereEndsAWaitWhenThePeerIsNeeded) {
  const auto world = Make(3);
  world->RunAll([](Transport& transport) {
    for (int peer = 0; peer < 3; ++peer) {
      Bytes in(1);
      if (peer == transport.rank()) continue;
      ExpectOk(Send(transport, peer, Step(0), Of(Bytes(1))));
      ExpectOk(Receive(transport, peer, Step(0), Of(&in)));
    }
  });
  Bytes from1(8);
  Bytes from2(8);
  ASSERT_TRUE(world->At(0).PostReceive(2, Step(1), Of(&from2)).ok());
  world->Kill(2);
  const Status status = Receive(world->At(0), 1, Step(1), Of(&from1));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 2);
}

TEST_P(TransportContract, WhatADeadPeerSentStillCounts) {
  const auto world = MakeConnectedPair();
  Bytes posted(8);
  Bytes kept(8);
  const Result<Ticket> ticket = world->At(0).PostReceive(1, Step(0), Of(&posted));
  ASSERT_TRUE(ticket.ok());
  ExpectOk(Send(world->At(1), 0, Step(0), Of(Pattern(8, 0))));
  ExpectOk(Send(world->At(1), 0, Step(1), Of(Pattern(8, 1))));
  world->Kill(1);
  ExpectOk(world->At(0).Wait(ticket.value(), Soon()));
  ExpectOk(Receive(world->At(0), 1, Step(1), Of(&kept)));
  EXPECT_EQ(posted, Pattern(8, 0));
  EXPECT_EQ(kept, Pattern(8, 1));
  EXPECT_EQ(Receive(world->At(0), 1, Step(2), Of(&kept)).code(), Code::kPeerLost);
}

TEST_P(TransportContract, DeadStaysDead) {
  const auto world = MakeConnectedPair();
  Bytes in(8);
  Transport& transport = world->At(0);
  const Status first = Receive(transport, 1, Step(0), Of(&in), Deadline::After(0.01));
  ASSERT_FALSE(first.ok());
  transport.Interrupt(Status(Code::kAborted, "too late"));
  for (const Status& later :
       {transport.PostSend(1, Step(1), {}).status(), transport.PostReceive(1, Step(1), {}).status(),
        transport.Wait(1, Soon()), transport.Test(1).status()}) {
    EXPECT_EQ(later.code(), first.code());
    EXPECT_EQ(later.message(), first.message());
  }
}

TEST_P(TransportContract, BadArgumentsLeaveItAlive) {
  const auto world = MakeConnectedPair();
  Transport& transport = world->At(0);
  Bytes in(1);
  for (const int peer : {0, -1, 2}) {
    EXPECT_EQ(transport.PostSend(peer, Step(0), {}).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(transport.PostReceive(peer, Step(0), {}).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(transport.Wait(0, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(transport.Wait(123456789, Soon()).code(), Code::kInvalidArgument);
  const Result<Ticket> ticket = transport.PostReceive(1, Step(0), Of(&in));
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(transport.PostReceive(1, Step(0), Of(&in)).status().code(), Code::kInvalidArgument);
  ExpectOk(Send(world->At(1), 0, Step(0), Of(Pattern(1, 4))));
  ExpectOk(transport.Wait(ticket.value(), Soon()));
  EXPECT_EQ(transport.Wait(ticket.value(), Soon()).code(), Code::kInvalidArgument) << "a ticket is good for one Wait";
  EXPECT_EQ(in, Pattern(1, 4));
}

TEST_P(TransportContract, FourRanksAllToAll) {
  const auto world = Make(4);
  constexpr uint32_t kRounds = 30;
  world->RunAll([](Transport& transport) {
    const int self = transport.rank();
    for (uint32_t round = 0; round < kRounds; ++round) {
      const size_t size = size_t{1} << (round % 19);
      std::vector<Bytes> out;
      std::vector<Bytes> in(4, Bytes(size));
      for (int peer = 0; peer < 4; ++peer) out.push_back(Pattern(size, self * 4 + peer));
      std::vector<Ticket> tickets;
      for (int distance = 1; distance < 4; ++distance) {
        const int to = (self + distance) % 4;
        const int from = (self + 4 - distance) % 4;
        tickets.push_back(transport.PostSend(to, Step(round), Of(out[static_cast<size_t>(to)])).Take());
        tickets.push_back(transport.PostReceive(from, Step(round), Of(&in[static_cast<size_t>(from)])).Take());
      }
      for (const Ticket ticket : tickets) ExpectOk(transport.Wait(ticket, Soon()));
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == self) continue;
        ASSERT_EQ(in[static_cast<size_t>(peer)], Pattern(size, peer * 4 + self));
      }
    }
  });
}

const TransportFactory kFactories[] = {
    {"Memory", [](int size) { return std::make_unique<MemoryWorld>(size); }},
    {"Tcp", [](int size) { return std::make_unique<TcpWorld>(size); }},
    {"TcpSpinning",
     [](int size) { return std::make_unique<TcpWorld>(size, TcpWorldOptions{50, 30, size_t{64} << 20}); }},
    {"TcpSmallRoom",
     [](int size) { return std::make_unique<TcpWorld>(size, TcpWorldOptions{0, 30, size_t{256} << 10}); }},
};

INSTANTIATE_TEST_SUITE_P(All, TransportContract, testing::ValuesIn(kFactories),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tfc
