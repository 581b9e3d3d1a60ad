#include "engine/joining.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

StandIn Running(uint32_t channel, uint64_t sequence) {
  StandIn stand_in;
  stand_in.channel = channel;
  stand_in.sequence = sequence;
  return stand_in;
}

std::vector<int> RanksOf(const std::vector<JoinDesk::Order>& orders) {
  std::vector<int> ranks;
  for (const auto& [rank, stand_in] : orders) ranks.push_back(rank);
  return ranks;
}

TEST(JoinedRanksTest, CountsWhoContributesToEachOperationOfAChannel) {
  JoinedRanks joined(4);
  EXPECT_FALSE(joined.any());
  joined.Add(1, {{0, 5}});
  joined.Add(3, {{0, 6}, {7, 2}});
  EXPECT_TRUE(joined.any());
  EXPECT_FALSE(joined.Needs(0, 4));
  EXPECT_TRUE(joined.Needs(0, 5));
  const auto fifth = joined.ContributorsOf(0, 5);
  EXPECT_EQ(fifth.before, 4);
  EXPECT_EQ(fifth.now, 3);
  const auto sixth = joined.ContributorsOf(0, 6);
  EXPECT_EQ(sixth.before, 3);
  EXPECT_EQ(sixth.now, 2);
  EXPECT_EQ(joined.ContributorsOf(0, 9).before, 2);
  // A channel that a rank has not used: it is missing from its first operation on.
  EXPECT_EQ(joined.ContributorsOf(7, 0).now, 3);
  EXPECT_EQ(joined.ContributorsOf(7, 2).now, 2);
  EXPECT_EQ(joined.ranks(), (std::vector<int>{1, 3}));
  joined.Clear();
  EXPECT_FALSE(joined.any());
  EXPECT_EQ(joined.ContributorsOf(0, 9).now, 4);
}

TEST(JoinDeskTest, OrdersOnceAllRanksKnowWhoHasJoined) {
  JoinDesk desk(3);
  EXPECT_FALSE(desk.Join(1, {{0, 5}}));
  EXPECT_TRUE(desk.joined(1));
  EXPECT_TRUE(desk.Ask(Running(0, 5)).empty());
  EXPECT_TRUE(desk.Acknowledge().empty());
  EXPECT_TRUE(desk.Acknowledge().empty());
  EXPECT_EQ(RanksOf(desk.Acknowledge()), std::vector<int>{1});
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 6))), std::vector<int>{1});
}

TEST(JoinDeskTest, OrdersEachStandInOnceARank) {
  JoinDesk desk(3);
  desk.Join(1, {{0, 5}});
  for (int rank = 0; rank < 3; ++rank) desk.Acknowledge();
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 5))), std::vector<int>{1});
  EXPECT_TRUE(desk.Ask(Running(0, 5)).empty());
  // Rank 2 has not begun what rank 1 stands in for: it hears of it too.
  EXPECT_FALSE(desk.Join(2, {{0, 5}}));
  for (int rank = 0; rank < 3; ++rank) desk.Acknowledge();
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 5))), std::vector<int>{2});
  // What a joined rank has done itself it does not do again.
  EXPECT_TRUE(desk.Ask(Running(0, 4)).empty());
  EXPECT_TRUE(desk.Join(0, {{0, 6}}));
}

TEST(JoiningTest, OnlySumsAndAveragesTakeZeros) {
  Operation operation;
  operation.collective = Collective::kAllReduce;
  for (Op op : {Op::kAverage, Op::kSum}) {
    operation.op = op;
    EXPECT_TRUE(TakesStandIns(operation));
  }
  for (Op op : {Op::kMin, Op::kMax, Op::kProduct}) {
    operation.op = op;
    EXPECT_FALSE(TakesStandIns(operation));
  }
  operation.op = Op::kSum;
  operation.collective = Collective::kReduceScatter;
  EXPECT_FALSE(TakesStandIns(operation));
}

TEST(JoiningTest, AStandInHasTheSignatureOfItsOperation) {
  std::vector<float> values(6);
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.op = Op::kAverage;
  operation.name = "w";
  operation.prescale = 0.5;
  operation.shape = {2, 3};
  operation.input = {{reinterpret_cast<const std::byte*>(values.data()), 24}};
  StandIn stand_in = StandInOf(3, 4, operation);
  EXPECT_EQ(stand_in.bytes, 24u);
  stand_in.operation.input = operation.input;
  EXPECT_EQ(stand_in.operation.Signature(), operation.Signature());
}

}  // namespace
}  // namespace tfc
