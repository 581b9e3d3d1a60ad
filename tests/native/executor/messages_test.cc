#include "executor/messages.h"

#include <gtest/gtest.h>

#include "executor/channels.h"

namespace tfc {
namespace {

constexpr int kSize = 8;  // of the world

ZeroContribution Zeros() {
  ZeroContribution contribution;
  contribution.channel = 3;
  contribution.sequence = 9;
  contribution.bytes = 24;
  contribution.operation.collective = Collective::kAllReduce;
  contribution.operation.dtype = Dtype::kFloat32;
  contribution.operation.op = Op::kAverage;
  contribution.operation.postscale = 0.5;
  contribution.operation.timeout_s = 2.5;
  contribution.operation.name = "grad";
  contribution.operation.shape = {2, 3};
  return contribution;
}

Decision PlanOn(uint32_t channel) {
  Decision decision;
  decision.subject = Subject::kPlan;
  decision.name = "plan";
  decision.channel = channel;
  return decision;
}

template <typename Message>
Status DecodeAs(const std::string& bytes) {
  Message message;
  return DecodeAndCheck(bytes, kSize, &message);
}

// Survives the wire, and is PROTOCOL if it is cut anywhere or goes on behind its end.
template <typename Message>
void ExpectExactLength(const Message& message) {
  const std::string bytes = Encode(message);
  Message back;
  ASSERT_TRUE(DecodeAndCheck(bytes, kSize, &back).ok());
  EXPECT_EQ(Encode(back), bytes);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(DecodeAs<Message>(bytes.substr(0, size)).code(), Code::kProtocol) << size << " of " << bytes.size();
  EXPECT_EQ(DecodeAs<Message>(bytes + '\0').code(), Code::kProtocol);
}

template <typename Message>
void ExpectRefused(const Message& message, const std::string& text) {
  const Status refused = DecodeAs<Message>(Encode(message));
  EXPECT_EQ(refused.code(), Code::kProtocol);
  EXPECT_NE(refused.message().find(text), std::string::npos) << refused.message();
}

TEST(MessagesTest, HaveTheirExactLength) {
  const Progress progress{{0, 5}, {3, 12}};
  ExpectExactLength(Status(Code::kIo, "late", 2));
  ExpectExactLength(Go{true, Status(Code::kIo, "no memory", 1)});
  ExpectExactLength(progress);
  ExpectExactLength(Left{4, progress});
  ExpectExactLength(Grouped(Joins{{1, {{0, 5}}}, {2, {{0, 5}}}, {7, progress}}));
  ExpectExactLength(AllJoined{7});
  ExpectExactLength(Freed{kFirstPlanChannel});
  ExpectExactLength(PlanOn(kFirstPlanChannel + kMaxPlans - 1));
  ExpectExactLength(Place{3, 9});
  ExpectExactLength(Standstill{true, 7, progress, {{3, 9, 77, "title"}}});
  ExpectExactLength(FailureArbiter::View{{3, 9}, "view", "instead", false, 77});
  ExpectExactLength(FailureArbiter::Observation{FailureArbiter::Event::kTimeout, Status(Code::kIo, "late", 2), {3, 9}});
  ExpectExactLength(Zeros());
  ExpectExactLength(2.5);
  ExpectExactLength(std::string("plan"));
}

TEST(MessagesTest, RanksAreThoseOfTheWorld) {
  for (const int rank : {-1, kSize, 1 << 30}) {
    const std::string text = "rank " + std::to_string(rank) + " of a world of 8";
    ExpectRefused(Left{rank, {{0, 5}}}, text);
    ExpectRefused(AllJoined{rank}, text);
    ExpectRefused(Grouped(Joins{{1, {{0, 5}}}, {rank, {{0, 5}}}}), text);
  }
  Decision decision;
  decision.blobs.resize(kSize + 1);
  ExpectRefused(decision, "another number of ranks");
}

TEST(MessagesTest, ChannelsAreThoseThatThereAre) {
  for (const uint32_t channel : {kDirectChannel, kProbeChannel, ~uint32_t{0}}) {
    const std::string text = "the channel " + std::to_string(channel) + ", which is no plan's";
    ExpectRefused(Freed{channel}, text);
    ExpectRefused(PlanOn(channel), text);
  }
  ExpectRefused(Freed{kNoPlanChannel}, "no plan's");
  ExpectExactLength(PlanOn(kNoPlanChannel));
  for (const uint32_t channel : {kProbeChannel, ~uint32_t{0}}) {
    ZeroContribution contribution = Zeros();
    contribution.channel = channel;
    ExpectRefused(contribution, "allreduce 'grad' on channel " + std::to_string(channel));
  }
}

TEST(MessagesTest, AMessageThatGoesTheWrongWayIsRefused) {
  for (const Message type :
       {Message::kReady, Message::kRequest, Message::kStandstill, Message::kAbort, Message::kLeave, Message::kNoted}) {
    EXPECT_TRUE(CheckDirection(type, 2, 0).ok());
    EXPECT_TRUE(CheckDirection(type, 0, 0).ok());
    EXPECT_EQ(CheckDirection(type, 0, 2).code(), Code::kProtocol);
  }
  for (const Message type : {Message::kGo, Message::kDecision, Message::kStandstillQuery, Message::kFailed,
                             Message::kLeft, Message::kJoined}) {
    EXPECT_TRUE(CheckDirection(type, 0, 2).ok());
    EXPECT_TRUE(CheckDirection(type, 0, 0).ok());
    EXPECT_EQ(CheckDirection(type, 2, 0).code(), Code::kProtocol);
  }
}

TEST(MessagesTest, ValuesSurvive) {
  const FailureArbiter::Observation trouble{FailureArbiter::Event::kTimeout, Status(Code::kIo, "late", 2), {3, 9}};
  FailureArbiter::Observation trouble_back;
  ASSERT_TRUE(Decode(Encode(trouble), &trouble_back).ok());
  EXPECT_EQ(trouble_back.event, FailureArbiter::Event::kTimeout);
  EXPECT_EQ(trouble_back.place, (Place{3, 9}));
  EXPECT_EQ(trouble_back.status.message(), "late");

  FailureArbiter::View view_back;
  ASSERT_TRUE(Decode(Encode(FailureArbiter::View{{3, 9}, "view", "instead", false, 77}), &view_back).ok());
  EXPECT_EQ(view_back.place, (Place{3, 9}));
  EXPECT_EQ(view_back.text + view_back.instead, "viewinstead");
  EXPECT_EQ(view_back.signature, 77u);

  ZeroContribution zeros_back;
  ASSERT_TRUE(Decode(Encode(Zeros()), &zeros_back).ok());
  EXPECT_EQ(zeros_back.operation.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(zeros_back.operation.timeout_s, 2.5);
}

TEST(MessagesTest, RanksThatHaveDoneTheSameAreWrittenTogether) {
  Joins joins;
  const Progress progress{{0, 5}, {1, 6}, {2, 7}, {3, 8}};
  for (int rank = 0; rank < 1000; ++rank) joins[rank] = progress;
  EXPECT_LT(Encode(Grouped(joins)).size(), 5000u);
}

TEST(MessagesTest, ValuesThatThereAreNotAreRefused) {
  // What a rank decides for itself is not asked of rank 0.
  ExpectRefused(FailureArbiter::Observation{FailureArbiter::Event::kBroken}, "out of range");
  ZeroContribution contribution = Zeros();
  contribution.operation.dtype = static_cast<Dtype>(99);
  ExpectRefused(contribution, "out of range");
  contribution = Zeros();
  contribution.operation.op = static_cast<Op>(2);
  ExpectRefused(contribution, "out of range");
  contribution = Zeros();
  contribution.operation.collective = Collective::kBroadcast;
  ExpectRefused(contribution, "takes no contribution of zeros");
  // A code of a failure, and a number of entries, that lie.
  EXPECT_EQ(DecodeAs<Status>(std::string("\x63\0\0\0", 4) + Encode(Status(Code::kIo, "x")).substr(4)).code(),
            Code::kProtocol);
  EXPECT_EQ(DecodeAs<Progress>(std::string("\xff\xff\xff\xff", 4)).code(), Code::kProtocol);
}

}  // namespace
}  // namespace tfc
