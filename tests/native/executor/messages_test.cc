#include "executor/messages.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

TEST(MessagesTest, SurviveTheWire) {
  const Progress progress{{0, 5}, {3, 12}};
  Progress progress_back;
  int rank = 0;
  ASSERT_TRUE(DecodeLeft(EncodeLeft(4, progress), &rank, &progress_back).ok());
  EXPECT_EQ(rank, 4);
  EXPECT_EQ(progress_back, progress);

  const Joins joins{{1, {{0, 5}}}, {2, {{0, 5}}}, {7, {{0, 5}, {3, 1}}}};
  Joins joins_back;
  ASSERT_TRUE(Decode(Encode(joins), &joins_back).ok());
  EXPECT_EQ(joins_back, joins);

  const FailureArbiter::Observation trouble{FailureArbiter::Event::kTimeout, Status(Code::kIo, "late", 2), {3, 9}};
  FailureArbiter::Observation trouble_back;
  ASSERT_TRUE(Decode(Encode(trouble), &trouble_back).ok());
  EXPECT_EQ(trouble_back.event, FailureArbiter::Event::kTimeout);
  EXPECT_EQ(trouble_back.place, (Place{3, 9}));
  EXPECT_EQ(trouble_back.status.message(), "late");
  // What a rank decides for itself is not asked of rank 0.
  const FailureArbiter::Observation own{FailureArbiter::Event::kBroken};
  EXPECT_EQ(Decode(Encode(own), &trouble_back).code(), Code::kProtocol);

  FailureArbiter::View view_back;
  ASSERT_TRUE(Decode(Encode(FailureArbiter::View{{3, 9}, "view", "instead", false, 77}), &view_back).ok());
  EXPECT_EQ(view_back.place, (Place{3, 9}));
  EXPECT_EQ(view_back.text + view_back.instead, "viewinstead");
  EXPECT_EQ(view_back.signature, 77u);

  double seconds = 0;
  ASSERT_TRUE(DecodeSeconds(EncodeSeconds(2.5), &seconds).ok());
  EXPECT_EQ(seconds, 2.5);
}

TEST(MessagesTest, RanksThatHaveDoneTheSameAreWrittenTogether) {
  Joins joins;
  const Progress progress{{0, 5}, {1, 6}, {2, 7}, {3, 8}};
  for (int rank = 0; rank < 1000; ++rank) joins[rank] = progress;
  EXPECT_LT(Encode(joins).size(), 5000u);
}

TEST(MessagesTest, AZeroContributionSurvivesTheWireAndItsCutsDoNot) {
  ZeroContribution contribution;
  contribution.channel = 3;
  contribution.sequence = 9;
  contribution.bytes = 24;
  contribution.operation.dtype = Dtype::kFloat32;
  contribution.operation.op = Op::kAverage;
  contribution.operation.postscale = 0.5;
  contribution.operation.timeout_s = 2.5;
  contribution.operation.name = "grad";
  contribution.operation.shape = {2, 3};
  const std::string bytes = Encode(contribution);
  ZeroContribution back;
  ASSERT_TRUE(Decode(bytes, &back).ok());
  EXPECT_EQ(Encode(back), bytes);
  EXPECT_EQ(back.operation.collective, Collective::kAllReduce);
  EXPECT_EQ(back.operation.shape, (std::vector<int64_t>{2, 3}));
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(Decode(bytes.substr(0, size), &back).code(), Code::kProtocol) << size;
  contribution.operation.dtype = static_cast<Dtype>(99);
  EXPECT_EQ(Decode(Encode(contribution), &back).code(), Code::kProtocol);
}

// Cut anywhere or with a length that lies: always PROTOCOL, never a read beyond the end.
TEST(MessagesTest, GarbageIsRefused) {
  Status status;
  EXPECT_EQ(Decode(std::string("\x63\0\0\0", 4) + Encode(Status(Code::kIo, "x")).substr(4), &status).code(),
            Code::kProtocol);
  Progress progress;
  EXPECT_EQ(Decode(std::string("\xff\xff\xff\xff", 4), &progress).code(), Code::kProtocol);
  const std::string joins = Encode(Joins{{1, {{0, 5}}}, {2, {{0, 7}}}});
  Joins joins_back;
  for (size_t size = 0; size < joins.size(); ++size)
    EXPECT_EQ(Decode(joins.substr(0, size), &joins_back).code(), Code::kProtocol) << size;
}

}  // namespace
}  // namespace tfc
