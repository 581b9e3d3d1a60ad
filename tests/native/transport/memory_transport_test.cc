#include "testing/memory_transport.h"

#include <gtest/gtest.h>

#include <vector>

#include "testing/faulty_transport.h"

namespace tfc {
namespace {

using Bytes = std::vector<std::byte>;

const Tag kTag = {0, 0, 1, 1};

ConstSpans Of(const Bytes& bytes) { return {ConstSpan{bytes.data(), bytes.size()}}; }
MutableSpans Of(Bytes* bytes) { return {MutableSpan{bytes->data(), bytes->size()}}; }

TEST(MemoryTransportTest, ALargeSendIsDoneOnlyWhenItIsReceived) {
  MemoryHub hub(MemoryHubOptions{2, 10});
  const auto transports = hub.MakeAll();
  const Bytes small(10);
  const Bytes large(11);
  const Ticket eager = transports[0]->PostSend(1, kTag, Of(small)).Take();
  const Ticket rendezvous = transports[0]->PostSend(1, Tag{0, 1, 1, 1}, Of(large)).Take();
  EXPECT_TRUE(transports[0]->Test(eager).value());
  EXPECT_FALSE(transports[0]->Test(rendezvous).value());
  Bytes in(11);
  const Ticket receive = transports[1]->PostReceive(0, Tag{0, 1, 1, 1}, Of(&in)).Take();
  EXPECT_TRUE(transports[1]->Test(receive).value());
  EXPECT_TRUE(transports[0]->Test(rendezvous).value());
}

TEST(MemoryTransportTest, AFailedRankWithdrawsItsMemory) {
  MemoryHub hub(MemoryHubOptions{2, 0});
  const auto transports = hub.MakeAll();
  {
    const Bytes gone(8);
    const Ticket send = transports[0]->PostSend(1, kTag, Of(gone)).Take();
    EXPECT_EQ(transports[0]->Wait(send, Deadline::After(0.01)).code(), Code::kDeadlineExceeded);
  }
  Bytes in(8);
  const Ticket receive = transports[1]->PostReceive(0, kTag, Of(&in)).Take();
  EXPECT_FALSE(transports[1]->Test(receive).value());
}

TEST(MemoryTransportTest, TheHubCanCloseARank) {
  MemoryHub hub(2);
  const auto transports = hub.MakeAll();
  Bytes in(8);
  const Ticket receive = transports[1]->PostReceive(0, kTag, Of(&in)).Take();
  hub.Close(0);
  const Status status = transports[1]->Wait(receive, Deadline::After(10));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 0);
  EXPECT_EQ(transports[0]->PostSend(1, kTag, {}).status().code(), Code::kCancelled);
}

// What one exchange of the sweep below ends with.
Status Exchange(Transport& transport) {
  Bytes bytes(1);
  Result<Ticket> send = transport.PostSend(1, kTag, Of(bytes));
  if (!send.ok()) return send.status();
  return transport.Wait(send.value(), Deadline::After(5));
}

TEST(FaultyTransportTest, FailsTheChosenCallAndAllLaterOnes) {
  for (int64_t call = 0; call < 2; ++call) {
    MemoryHub hub(2);
    const auto transports = hub.MakeAll();
    FaultyTransport faulty(*transports[0], Fault{Fault::Kind::kFail, call, Status(Code::kIo, "broken"), 0});
    EXPECT_EQ(Exchange(faulty).message(), "broken");
    EXPECT_EQ(Exchange(faulty).message(), "broken");
  }
}

TEST(FaultyTransportTest, WithoutAFaultItCounts) {
  MemoryHub hub(2);
  const auto transports = hub.MakeAll();
  FaultyTransport faulty(*transports[0], Fault{});
  EXPECT_TRUE(Exchange(faulty).ok());
  EXPECT_EQ(faulty.calls(), 2);
}

TEST(FaultyTransportTest, ADroppedSendLooksDoneAndNeverArrives) {
  MemoryHub hub(2);
  const auto transports = hub.MakeAll();
  FaultyTransport faulty(*transports[0], Fault{Fault::Kind::kDrop, 0, Status(), 0});
  EXPECT_TRUE(Exchange(faulty).ok());
  Bytes in(1);
  const Ticket receive = transports[1]->PostReceive(0, kTag, Of(&in)).Take();
  EXPECT_EQ(transports[1]->Wait(receive, Deadline::After(0.02)).code(), Code::kDeadlineExceeded);
}

TEST(FaultyTransportTest, ADelayIsJustThat) {
  MemoryHub hub(2);
  const auto transports = hub.MakeAll();
  FaultyTransport faulty(*transports[0], Fault{Fault::Kind::kDelay, 1, Status(), 0.03});
  const auto begin = Deadline::Clock::now();
  EXPECT_TRUE(Exchange(faulty).ok());
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::milliseconds(30));
}

}  // namespace
}  // namespace tfc
