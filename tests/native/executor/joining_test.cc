#include "executor/joining.h"

#include <gtest/gtest.h>

#include <chrono>

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
  for (const JoinDesk::Order& order : orders) ranks.insert(ranks.end(), order.ranks.begin(), order.ranks.end());
  return ranks;
}

// What is announced, as soon as it may be.
std::vector<int> Announced(JoinDesk* desk) {
  std::vector<int> ranks;
  const auto due = desk->due();
  if (!due) return ranks;
  EXPECT_TRUE(desk->TakeAnnouncement(*due - std::chrono::nanoseconds(1)).empty());
  for (const auto& [rank, progress] : desk->TakeAnnouncement(*due)) ranks.push_back(rank);
  return ranks;
}

void AcknowledgeAll(JoinDesk* desk, int size) {
  for (int rank = 0; rank < size; ++rank) EXPECT_TRUE(desk->Acknowledge().empty());
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
  EXPECT_EQ(Announced(&desk), std::vector<int>{1});
  EXPECT_TRUE(desk.Ask(Running(0, 5)).empty());
  EXPECT_TRUE(desk.Acknowledge().empty());
  EXPECT_TRUE(desk.Acknowledge().empty());
  EXPECT_EQ(RanksOf(desk.Acknowledge()), std::vector<int>{1});
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 6))), std::vector<int>{1});
}

TEST(JoinDeskTest, OrdersEachStandInOnceARank) {
  JoinDesk desk(3);
  desk.Join(1, {{0, 5}});
  EXPECT_EQ(Announced(&desk), std::vector<int>{1});
  AcknowledgeAll(&desk, 3);
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 5))), std::vector<int>{1});
  EXPECT_TRUE(desk.Ask(Running(0, 5)).empty());
  // Rank 2 has not begun what rank 1 stands in for: it hears of it too.
  EXPECT_FALSE(desk.Join(2, {{0, 5}}));
  EXPECT_EQ(Announced(&desk), std::vector<int>{2});
  AcknowledgeAll(&desk, 3);
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 5))), std::vector<int>{2});
  // What a joined rank has done itself it does not do again.
  EXPECT_TRUE(desk.Ask(Running(0, 4)).empty());
  EXPECT_TRUE(desk.Join(0, {{0, 6}}));
}

TEST(JoinDeskTest, AnnouncesWhenARankRunsWhatAJoinedOneIsMissingFrom) {
  JoinDesk desk(3);
  desk.Join(1, {{0, 5}});
  EXPECT_EQ(Announced(&desk), std::vector<int>{1});
  AcknowledgeAll(&desk, 3);
  desk.Join(2, {{0, 8}});
  EXPECT_FALSE(desk.due()) << "an operation that misses rank 2 misses rank 1, and is asked for";
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 7))), std::vector<int>{1});
  EXPECT_FALSE(desk.due());
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 8))), std::vector<int>{1});
  EXPECT_EQ(Announced(&desk), std::vector<int>{2});
  AcknowledgeAll(&desk, 3);
  EXPECT_EQ(RanksOf(desk.Ask(Running(0, 8))), std::vector<int>{2});
}

TEST(JoinDeskTest, ARankThatCameLessFarIsAnnouncedAtOnce) {
  JoinDesk desk(4);
  desk.Join(1, {{0, 5}, {3, 2}});
  EXPECT_EQ(Announced(&desk), std::vector<int>{1});
  AcknowledgeAll(&desk, 4);
  desk.Join(2, {{0, 7}, {3, 2}});
  EXPECT_FALSE(desk.due());
  // Rank 1 is not missing from operation 1 of channel 3, so no rank would ask for it.
  desk.Join(3, {{0, 9}, {3, 1}});
  EXPECT_EQ(Announced(&desk), (std::vector<int>{2, 3}));
}

TEST(JoinDeskTest, TheNextTimeAcknowledgementsOfTheLastTimeDoNotCount) {
  JoinDesk desk(2);
  EXPECT_FALSE(desk.Join(1, {{0, 5}}));
  EXPECT_EQ(Announced(&desk), std::vector<int>{1});
  EXPECT_TRUE(desk.Join(0, {{0, 5}}));
  desk.Clear();
  EXPECT_FALSE(desk.joined(1));
  EXPECT_FALSE(desk.Join(0, {{0, 9}}));
  EXPECT_FALSE(desk.due());
  AcknowledgeAll(&desk, 2);
  EXPECT_EQ(Announced(&desk), std::vector<int>{0});
  EXPECT_TRUE(desk.Ask(Running(0, 9)).empty());
  EXPECT_TRUE(desk.Acknowledge().empty());
  EXPECT_EQ(RanksOf(desk.Acknowledge()), std::vector<int>{0});
}

// Announcements and orders until every rank but 0, which runs one operation more, has joined: the messages of rank 0.
size_t MessagesWhenAllJoin(int size, bool rank_0_runs_on) {
  JoinDesk desk(size);
  size_t announced = 0, ordered = 0, acknowledging = 0;
  JoinDesk::Time now{};
  const auto run_on = [&] {
    if (rank_0_runs_on) ordered += RanksOf(desk.Ask(Running(0, 5))).size();
  };
  const auto announce = [&] {
    if (desk.TakeAnnouncement(now).empty()) return;
    announced += static_cast<size_t>(size);
    acknowledging += static_cast<size_t>(size);
    run_on();
  };
  for (int rank = 1; rank < size; ++rank) {
    desk.Join(rank, {{0, 5}});
    if (rank == 1) run_on();
    now += std::chrono::microseconds(10);
    announce();
    for (size_t i = 0; i < 3 && acknowledging > 0; ++i, --acknowledging) ordered += RanksOf(desk.Acknowledge()).size();
  }
  while (acknowledging > 0 || desk.due()) {
    if (acknowledging > 0) {
      ordered += RanksOf(desk.Acknowledge()).size();
      --acknowledging;
    }
    now += std::chrono::microseconds(10);
    announce();
  }
  if (rank_0_runs_on) EXPECT_EQ(ordered, static_cast<size_t>(size - 1)) << "every rank stands in, once";
  return announced + ordered;
}

TEST(JoinDeskTest, MessagesGrowAsTheRanksDo) {
  for (const bool rank_0_runs_on : {false, true}) {
    for (const int size : {64, 256, 1024}) {
      EXPECT_LE(MessagesWhenAllJoin(size, rank_0_runs_on), static_cast<size_t>(6 * size)) << rank_0_runs_on;
    }
  }
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
