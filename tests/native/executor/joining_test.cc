#include "executor/joining.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tfc {
namespace {

ZeroContribution Running(uint32_t channel, uint64_t sequence) {
  ZeroContribution contribution;
  contribution.channel = channel;
  contribution.sequence = sequence;
  return contribution;
}

std::vector<int> RanksOf(const std::vector<JoinTracker::Order>& orders) {
  std::vector<int> ranks;
  for (const JoinTracker::Order& order : orders) ranks.insert(ranks.end(), order.ranks.begin(), order.ranks.end());
  return ranks;
}

// What is announced, as soon as it may be.
std::vector<int> Announced(JoinTracker* tracker) {
  std::vector<int> ranks;
  const auto due = tracker->due();
  if (!due) return ranks;
  EXPECT_TRUE(tracker->TakeAnnouncement(*due - std::chrono::nanoseconds(1)).empty());
  for (const auto& [rank, progress] : tracker->TakeAnnouncement(*due)) ranks.push_back(rank);
  return ranks;
}

void AcknowledgeAll(JoinTracker* tracker, int size) {
  for (int rank = 0; rank < size; ++rank) EXPECT_TRUE(tracker->Acknowledge().empty());
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

TEST(JoinTrackerTest, OrdersOnceAllRanksKnowWhoHasJoined) {
  JoinTracker tracker(3);
  EXPECT_FALSE(tracker.Join(1, {{0, 5}}));
  EXPECT_TRUE(tracker.joined(1));
  EXPECT_EQ(Announced(&tracker), std::vector<int>{1});
  EXPECT_TRUE(tracker.Ask(Running(0, 5)).empty());
  EXPECT_TRUE(tracker.Acknowledge().empty());
  EXPECT_TRUE(tracker.Acknowledge().empty());
  EXPECT_EQ(RanksOf(tracker.Acknowledge()), std::vector<int>{1});
  EXPECT_EQ(RanksOf(tracker.Ask(Running(0, 6))), std::vector<int>{1});
}

TEST(JoinTrackerTest, OrdersEachZeroContributionOnceARank) {
  JoinTracker tracker(3);
  tracker.Join(1, {{0, 5}});
  EXPECT_EQ(Announced(&tracker), std::vector<int>{1});
  AcknowledgeAll(&tracker, 3);
  EXPECT_EQ(RanksOf(tracker.Ask(Running(0, 5))), std::vector<int>{1});
  EXPECT_TRUE(tracker.Ask(Running(0, 5)).empty());
  // Rank 2 has not begun what rank 1 stands in for: it hears of it too.
  EXPECT_FALSE(tracker.Join(2, {{0, 5}}));
  EXPECT_EQ(Announced(&tracker), std::vector<int>{2});
  AcknowledgeAll(&tracker, 3);
  EXPECT_EQ(RanksOf(tracker.Ask(Running(0, 5))), std::vector<int>{2});
  // What a joined rank has done itself it does not do again.
  EXPECT_TRUE(tracker.Ask(Running(0, 4)).empty());
  EXPECT_TRUE(tracker.Join(0, {{0, 6}}));
}

TEST(JoinTrackerTest, AnnouncesWhenARankRunsWhatAJoinedOneIsMissingFrom) {
  JoinTracker tracker(3);
  tracker.Join(1, {{0, 5}});
  EXPECT_EQ(Announced(&tracker), std::vector<int>{1});
  AcknowledgeAll(&tracker, 3);
  tracker.Join(2, {{0, 8}});
  EXPECT_FALSE(tracker.due()) << "an operation that misses rank 2 misses rank 1, and is asked for";
  EXPECT_EQ(RanksOf(tracker.Ask(Running(0, 7))), std::vector<int>{1});
  EXPECT_FALSE(tracker.due());
  EXPECT_EQ(RanksOf(tracker.Ask(Running(0, 8))), std::vector<int>{1});
  EXPECT_EQ(Announced(&tracker), std::vector<int>{2});
  AcknowledgeAll(&tracker, 3);
  EXPECT_EQ(RanksOf(tracker.Ask(Running(0, 8))), std::vector<int>{2});
}

TEST(JoinTrackerTest, ARankThatCameLessFarIsAnnouncedAtOnce) {
  JoinTracker tracker(4);
  tracker.Join(1, {{0, 5}, {3, 2}});
  EXPECT_EQ(Announced(&tracker), std::vector<int>{1});
  AcknowledgeAll(&tracker, 4);
  tracker.Join(2, {{0, 7}, {3, 2}});
  EXPECT_FALSE(tracker.due());
  // Rank 1 is not missing from operation 1 of channel 3, so no rank would ask for it.
  tracker.Join(3, {{0, 9}, {3, 1}});
  EXPECT_EQ(Announced(&tracker), (std::vector<int>{2, 3}));
}

TEST(JoinTrackerTest, TheNextTimeAcknowledgementsOfTheLastTimeDoNotCount) {
  JoinTracker tracker(2);
  EXPECT_FALSE(tracker.Join(1, {{0, 5}}));
  EXPECT_EQ(Announced(&tracker), std::vector<int>{1});
  EXPECT_TRUE(tracker.Join(0, {{0, 5}}));
  tracker.Clear();
  EXPECT_FALSE(tracker.joined(1));
  EXPECT_FALSE(tracker.Join(0, {{0, 9}}));
  EXPECT_FALSE(tracker.due());
  AcknowledgeAll(&tracker, 2);
  EXPECT_EQ(Announced(&tracker), std::vector<int>{0});
  EXPECT_TRUE(tracker.Ask(Running(0, 9)).empty());
  EXPECT_TRUE(tracker.Acknowledge().empty());
  EXPECT_EQ(RanksOf(tracker.Acknowledge()), std::vector<int>{0});
}

// Announcements and orders until every rank but 0, which runs one operation more, has joined: the messages of rank 0.
size_t MessagesWhenAllJoin(int size, bool rank_0_runs_on) {
  JoinTracker tracker(size);
  size_t announced = 0, ordered = 0, acknowledging = 0;
  JoinTracker::Time now{};
  const auto run_on = [&] {
    if (rank_0_runs_on) ordered += RanksOf(tracker.Ask(Running(0, 5))).size();
  };
  const auto announce = [&] {
    if (tracker.TakeAnnouncement(now).empty()) return;
    announced += static_cast<size_t>(size);
    acknowledging += static_cast<size_t>(size);
    run_on();
  };
  for (int rank = 1; rank < size; ++rank) {
    tracker.Join(rank, {{0, 5}});
    if (rank == 1) run_on();
    now += std::chrono::microseconds(10);
    announce();
    for (size_t i = 0; i < 3 && acknowledging > 0; ++i, --acknowledging)
      ordered += RanksOf(tracker.Acknowledge()).size();
  }
  while (acknowledging > 0 || tracker.due()) {
    if (acknowledging > 0) {
      ordered += RanksOf(tracker.Acknowledge()).size();
      --acknowledging;
    }
    now += std::chrono::microseconds(10);
    announce();
  }
  if (rank_0_runs_on) EXPECT_EQ(ordered, static_cast<size_t>(size - 1)) << "every rank stands in, once";
  return announced + ordered;
}

TEST(JoinTrackerTest, MessagesGrowAsTheRanksDo) {
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
    EXPECT_TRUE(TakesZeroContributions(operation));
  }
  for (Op op : {Op::kMin, Op::kMax, Op::kProduct}) {
    operation.op = op;
    EXPECT_FALSE(TakesZeroContributions(operation));
  }
  operation.op = Op::kSum;
  operation.collective = Collective::kReduceScatter;
  EXPECT_FALSE(TakesZeroContributions(operation));
}

TEST(JoiningTest, AZeroContributionHasTheSignatureOfItsOperation) {
  std::vector<float> values(6);
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.op = Op::kAverage;
  operation.name = "w";
  operation.prescale = 0.5;
  operation.shape = {2, 3};
  operation.input = {{reinterpret_cast<const std::byte*>(values.data()), 24}};
  ZeroContribution contribution = ZeroContributionOf(3, 4, operation);
  EXPECT_EQ(contribution.bytes, 24u);
  contribution.operation.input = operation.input;
  EXPECT_EQ(contribution.operation.Signature(), operation.Signature());
}

}  // namespace
}  // namespace tfc
