#include "agreement/negotiation.h"

#include <gtest/gtest.h>

#include "agreement/messages.h"

namespace tfc {
namespace {

using Time = Deadline::Clock::time_point;

Time At(double seconds) {
  return Time(std::chrono::duration_cast<Deadline::Clock::duration>(std::chrono::duration<double>(seconds)));
}

Request Ask(const std::string& name, uint64_t signature = 1, const std::string& view = "view") {
  Request request;
  request.name = name;
  request.signature = signature;
  request.view = view;
  request.timeout_s = 10;
  return request;
}

TEST(NegotiationTest, DecidesWhenTheLastRankAsks) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(2, Ask("a"), At(0)));
  EXPECT_FALSE(table.Arrive(0, Ask("a"), At(0)));
  const auto decision = table.Arrive(1, Ask("a"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->name, "a");
  EXPECT_TRUE(decision->refusal.ok());
  EXPECT_EQ(table.waiting(), 0u);
}

TEST(NegotiationTest, WhatIsNotDecidedIsNamedByRank) {
  NegotiationTable table(3, {3, 64});
  table.Arrive(0, Ask("a", 1, "allreduce 'a'"), At(0));
  Request plan =
      Ask("optimizer#1", 1, "bucket 0: variable 3 [1]\t(dense/bias)\nbucket 0: variable 2 [4,1]\t(dense/kernel)");
  plan.subject = Subject::kPlan;
  table.Arrive(1, plan, At(0));
  Request on_gpu = Ask("b");
  on_gpu.on_gpus = true;
  table.Arrive(2, on_gpu, At(0));
  EXPECT_EQ(
      table.UndecidedByRank(),
      (Undecided{{0, "allreduce 'a'"},
                 {1, "the first step of the bucket plan 'optimizer#1' with 2 gradients: dense/bias, dense/kernel"}}));
  table.Arrive(1, Ask("a"), At(0));
  table.Arrive(2, Ask("a"), At(0));
  EXPECT_EQ(table.UndecidedByRank().count(0), 0u);
}

TEST(NegotiationTest, OrderIsThatOfCompletion) {
  NegotiationTable table(2, {3, 64});
  EXPECT_FALSE(table.Arrive(0, Ask("a"), At(0)));
  EXPECT_FALSE(table.Arrive(1, Ask("b"), At(0)));
  EXPECT_EQ(table.Arrive(0, Ask("b"), At(0))->name, "b");
  EXPECT_EQ(table.Arrive(1, Ask("a"), At(0))->name, "a");
}

TEST(NegotiationTest, ARankMayBeRoundsAhead) {
  NegotiationTable table(2, {3, 64});
  for (int round = 0; round < 3; ++round) EXPECT_FALSE(table.Arrive(0, Ask("a"), At(0)));
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(table.Arrive(1, Ask("a"), At(0)));
  EXPECT_EQ(table.waiting(), 0u);
}

TEST(NegotiationTest, DisagreementShowsEveryView) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(0, Ask("w", 1, "allreduce 'w' float32[3]"), At(0)));
  EXPECT_FALSE(table.Arrive(1, Ask("w", 2, "allreduce 'w' float32[4]"), At(0)));
  const auto decision = table.Arrive(2, Ask("w", 1, "allreduce 'w' float32[3]"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->refusal.code(), Code::kMismatch);
  EXPECT_EQ(decision->refusal.message(),
            "the ranks disagree on 'w': ranks 0 and 2: allreduce 'w' float32[3]; rank 1: allreduce 'w' float32[4]");
}

TEST(NegotiationTest, LabelsAreShownAndNotCompared) {
  EXPECT_EQ(WithoutLabels("a\tdense\nb"), WithoutLabels("a\tdense_1\nb"));
  EXPECT_NE(WithoutLabels("a\tdense\nb"), WithoutLabels("a\tdense\nc"));
  EXPECT_EQ(CompareViews({{0, "[3]\tdense/bias\n[4]\tdense/kernel"}, {1, "[3]\tdense_1/bias\n[5]\tdense_1/kernel"}}),
            "rank 0: line 2: [4] dense/kernel; rank 1: line 2: [5] dense_1/kernel");
}

TEST(NegotiationTest, PlansGetChannelsOfTheirOwnUntilThereAreNone) {
  NegotiationTable table(1, {3, 2});
  Request plan = Ask("p");
  plan.subject = Subject::kPlan;
  EXPECT_EQ(table.Arrive(0, plan, At(0))->channel, 3u);
  plan.name = "q";
  EXPECT_EQ(table.Arrive(0, plan, At(0))->channel, 4u);
  plan.name = "r";
  const auto third = table.Arrive(0, plan, At(0));
  EXPECT_TRUE(third->refusal.ok());
  EXPECT_EQ(third->channel, kNoPlanChannel);
  EXPECT_FALSE(table.Forget(0, "r"));
  EXPECT_EQ(table.Forget(0, "p"), 3u);
  EXPECT_EQ(table.Arrive(0, plan, At(0))->channel, 3u);
}

TEST(NegotiationTest, PlansOnGpusHaveTheirOwnChannels) {
  NegotiationTable table(1, {3, 1}, {9, 1});
  Request plan = Ask("p");
  plan.subject = Subject::kPlan;
  Request on_gpu = Ask("g");
  on_gpu.subject = Subject::kPlan;
  on_gpu.on_gpus = true;
  EXPECT_EQ(table.Arrive(0, on_gpu, At(0))->channel, 9u);
  EXPECT_EQ(table.Arrive(0, plan, At(0))->channel, 3u);
  on_gpu.name = "h";
  EXPECT_EQ(table.Arrive(0, on_gpu, At(0))->channel, kNoPlanChannel);
  EXPECT_EQ(table.Forget(0, "g"), 9u);
  on_gpu.name = "i";
  EXPECT_EQ(table.Arrive(0, on_gpu, At(0))->channel, 9u);
}

TEST(NegotiationTest, ClosingGpusForgetsThePlansThere) {
  NegotiationTable table(1, {3, 1}, {9, 1});
  Request plan = Ask("p");
  plan.subject = Subject::kPlan;
  plan.on_gpus = true;
  EXPECT_TRUE(table.Arrive(0, plan, At(0)));
  table.CloseGpus();
  EXPECT_FALSE(table.Forget(0, "p"));
  plan.on_gpus = false;
  EXPECT_EQ(table.Arrive(0, plan, At(0))->channel, 3u);
}

TEST(NegotiationTest, AChannelIsFreeWhenAllRanksHaveForgottenItsPlan) {
  NegotiationTable table(3, {3, 64});
  Request plan = Ask("p");
  plan.subject = Subject::kPlan;
  for (int rank = 0; rank < 3; ++rank) table.Arrive(rank, plan, At(0));
  EXPECT_FALSE(table.Forget(0, "p"));
  EXPECT_FALSE(table.Forget(0, "p"));
  EXPECT_FALSE(table.Forget(2, "p"));
  EXPECT_FALSE(table.Forget(1, "q"));
  EXPECT_EQ(table.Forget(1, "p"), 3u);
  EXPECT_FALSE(table.Forget(1, "p"));
  EXPECT_FALSE(table.Arrive(0, plan, At(0))) << "all ranks have to agree again";
}

TEST(NegotiationTest, ARankThatForgotAPlanTooSoonGetsItBackAlone) {
  NegotiationTable table(2, {3, 64});
  Request plan = Ask("p");
  plan.subject = Subject::kPlan;
  table.Arrive(0, plan, At(0));
  table.Arrive(1, plan, At(0));
  EXPECT_FALSE(table.Forget(0, "p"));
  const auto again = table.Arrive(0, plan, At(0));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->channel, 3u);
  EXPECT_EQ(again->only_rank, 0);
  EXPECT_FALSE(table.Forget(1, "p")) << "rank 0 holds it";
}

TEST(NegotiationTest, OverdueNamesTheMissingRanks) {
  NegotiationTable table(4, {3, 64});
  EXPECT_FALSE(table.Arrive(2, Ask("a", 1, "allreduce 'a'"), At(0)));
  EXPECT_TRUE(table.Overdue(At(9.9)).ok());
  const Status overdue = table.Overdue(At(10));
  EXPECT_EQ(overdue.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(overdue.peer(), 0);
  EXPECT_EQ(overdue.message(), "allreduce 'a' timed out after 10 s: ranks 0, 1 and 3 did not call it");
}

TEST(NegotiationTest, OverdueSaysWhatALateRankWaitsInInstead) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(0, Ask("a", 1, "allreduce 'a'"), At(0)));
  EXPECT_FALSE(table.Arrive(2, Ask("c", 1, "allreduce 'c'"), At(2)));
  EXPECT_FALSE(table.Arrive(1, Ask("b", 1, "allreduce 'b'\nmore"), At(1)));
  const std::string message = table.Overdue(At(10)).message();
  const std::string expected =
      "allreduce 'a' timed out after 10 s: ranks 1 and 2 did not call it; rank 1 waits in allreduce 'b': ";
  EXPECT_EQ(message.substr(0, expected.size()), expected);
}

TEST(NegotiationTest, AStallIsReportedOnce) {
  NegotiationTable table(2, {3, 64});
  EXPECT_FALSE(table.Arrive(0, Ask("a"), At(0)));
  EXPECT_TRUE(table.Stalled(At(1.9), 2).empty());
  EXPECT_EQ(table.Stalled(At(2), 2), std::vector<std::string>{"view has waited 2 s for rank 1"});
  EXPECT_TRUE(table.Stalled(At(3), 2).empty());
}

Request AskOnGpus(const std::string& name, uint64_t signature = 1, const std::string& blob = "") {
  Request request = Ask(name, signature, "view " + std::to_string(signature));
  request.on_gpus = true;
  request.blob = blob;
  return request;
}

Request AskFor(Subject subject, const std::string& name, uint64_t signature = 1) {
  Request request = AskOnGpus(name, signature);
  request.subject = subject;
  return request;
}

TEST(NegotiationTest, WhatRanksSayOfThemselvesIsGathered) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(2, AskOnGpus("a", 7, "two"), At(0)));
  EXPECT_FALSE(table.Arrive(0, AskOnGpus("a", 7, "zero"), At(0)));
  const auto decision = table.Arrive(1, AskOnGpus("a", 7, "one"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_TRUE(decision->refusal.ok());
  EXPECT_TRUE(decision->on_gpus);
  EXPECT_EQ(decision->blobs, (std::vector<std::string>{"zero", "one", "two"}));
}

TEST(NegotiationTest, ADecisionIsShortWhereNoRankHasSaidAnything) {
  NegotiationTable table(1000, {3, 64});
  std::optional<Decision> decision;
  for (int rank = 0; rank < 1000; ++rank) decision = table.Arrive(rank, AskOnGpus("a"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_LT(Encode(*decision).size(), 100u) << "every rank gets it";
}

TEST(NegotiationTest, OnlyACallByNameIsRefusedAlone) {
  for (const Subject subject : {Subject::kOperation, Subject::kPlan, Subject::kDirectCall}) {
    NegotiationTable table(2, {3, 64});
    EXPECT_FALSE(table.Arrive(0, AskFor(subject, "1", 1), At(0)));
    const auto decision = table.Arrive(1, AskFor(subject, "1", 2), At(0));
    ASSERT_TRUE(decision);
    EXPECT_EQ(decision->refusal.code(), Code::kMismatch);
    EXPECT_NE(decision->refusal.message().find("rank 0: view 1; rank 1: view 2"), std::string::npos);
    EXPECT_EQ(decision->ends_all, subject != Subject::kOperation);
  }
}

TEST(NegotiationTest, OneNameOnAGpuAndInTheHostsMemoryEndsAll) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(1, AskOnGpus("a"), At(0)));
  EXPECT_FALSE(table.Arrive(0, Ask("a", 1, "view 1"), At(0)));
  const auto decision = table.Arrive(2, AskOnGpus("a"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_TRUE(decision->ends_all);
  EXPECT_EQ(
      decision->refusal.message(),
      "the ranks disagree on where 'a' lies: rank 0: view 1 in the host's memory; ranks 1 and 2: view 1 on a GPU");
}

// Each rank has both, in the same order.
TEST(NegotiationTest, OneNameMayLieOnAGpuAndThenInTheHostsMemory) {
  NegotiationTable table(2, {3, 64});
  EXPECT_FALSE(table.Arrive(0, AskOnGpus("a"), At(0)));
  EXPECT_FALSE(table.Arrive(0, Ask("a"), At(0)));
  EXPECT_TRUE(table.Arrive(1, AskOnGpus("a"), At(0))->on_gpus);
  EXPECT_FALSE(table.Arrive(1, Ask("a"), At(0))->on_gpus);
}

TEST(NegotiationTest, AnObjectionDecidesAtOnceAndClosesTheGpus) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(0, AskFor(Subject::kSetup, "set-up"), At(0)));
  EXPECT_FALSE(table.Arrive(0, AskFor(Subject::kDirectCall, "1"), At(0)));
  Request objection = AskFor(Subject::kSetup, "set-up");
  objection.objection = Status(Code::kUnimplemented, "rank 1 has no GPU", 1);
  const auto decision = table.Arrive(1, objection, At(0));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->refusal.message(), "rank 1 has no GPU");
  EXPECT_FALSE(decision->ends_all);
  EXPECT_EQ(table.waiting(), 0u);
  objection.objection = Status(Code::kUnimplemented, "rank 2 has no GPU", 2);
  EXPECT_FALSE(table.Arrive(2, objection, At(0))) << "it is decided";
  EXPECT_FALSE(table.Arrive(0, AskFor(Subject::kDirectCall, "2"), At(0)));
  EXPECT_TRUE(table.Overdue(At(100)).ok());
}

TEST(NegotiationTest, WhatGoesThroughTheHostTakesThePlaceOfWhatWasAskedForOnGpus) {
  NegotiationTable table(3, {3, 64});
  EXPECT_FALSE(table.Arrive(0, AskOnGpus("a"), At(0)));
  EXPECT_FALSE(table.Arrive(0, Ask("a"), At(0)));
  EXPECT_FALSE(table.Arrive(1, AskOnGpus("a"), At(0)));
  EXPECT_FALSE(table.Arrive(1, AskOnGpus("b"), At(0)));
  table.CloseGpus();
  EXPECT_EQ(table.waiting(), 1u);
  EXPECT_FALSE(table.Arrive(2, Ask("a"), At(0)));
  const auto decision = table.Arrive(1, Ask("a"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_TRUE(decision->refusal.ok());
  EXPECT_FALSE(decision->on_gpus);
}

TEST(NegotiationTest, ASetUpWaitsForJoinedRanks) {
  NegotiationTable table(2, {3, 64});
  EXPECT_FALSE(table.Arrive(0, AskFor(Subject::kSetup, "set-up"), At(0)));
  EXPECT_TRUE(table.Join(1).empty());
  EXPECT_TRUE(table.Arrive(0, AskOnGpus("a"), At(0))->refusal.code() == Code::kMismatch)
      << "zeros do not stand in there";
  EXPECT_EQ(table.Overdue(At(11)).peer(), 1);
  table.Return();
  EXPECT_TRUE(table.Arrive(1, AskFor(Subject::kSetup, "set-up"), At(0)));
}

TEST(NegotiationTest, TheShortestTimeoutEndsTheWaiting) {
  NegotiationTable table(3, {3, 64});
  Request patient = Ask("a"), hasty = Ask("a");
  patient.timeout_s = 100;
  hasty.timeout_s = 2;
  EXPECT_FALSE(table.Arrive(0, patient, At(0)));
  EXPECT_FALSE(table.Arrive(1, hasty, At(1)));
  EXPECT_TRUE(table.Overdue(At(2.9)).ok());
  EXPECT_EQ(table.Overdue(At(3)).message(), "view timed out after 2 s: rank 2 did not call it");
}

TEST(NegotiationTest, ARankMayJoinBetweenItsRounds) {
  NegotiationTable table(3, {3, 64});
  Request request = Ask("a");
  request.takes_zeros = true;
  EXPECT_FALSE(table.Arrive(2, request, At(0)));
  for (int round = 0; round < 2; ++round) EXPECT_FALSE(table.Arrive(0, request, At(0)));
  EXPECT_TRUE(table.Join(2).empty());
  EXPECT_TRUE(table.Arrive(1, request, At(0)));  // the first round: with rank 2
  EXPECT_TRUE(table.Arrive(1, request, At(0)));  // the second one: without
  EXPECT_EQ(table.waiting(), 0u);
}

TEST(CompareViewsTest, OfManyDifferentViewsSomeAreShown) {
  std::map<int, std::string> views;
  for (int rank = 0; rank < 1000; ++rank) views[rank] = "view " + std::to_string(rank);
  const std::string text = CompareViews(views);
  EXPECT_EQ(text.rfind("rank 0: view 0; rank 1: view 1; ", 0), 0u) << text;
  EXPECT_NE(text.find("; and 984 other views"), std::string::npos) << text;
}

TEST(CompareViewsTest, CutsLongViewsToTheFirstDifference) {
  EXPECT_EQ(CompareViews({{0, "a\nb\nc"}, {1, "a\nx\nc"}}), "rank 0: line 2: b; rank 1: line 2: x");
  EXPECT_EQ(CompareViews({{0, "a\nb"}, {1, "a"}}), "rank 0: line 2: b; rank 1: ends after line 1");
}

Request AskJoinable(const std::string& name, uint64_t signature = 1) {
  Request request = Ask(name, signature);
  request.takes_zeros = true;
  return request;
}

TEST(NegotiationTest, DecidesWithoutTheRanksThatHaveJoined) {
  NegotiationTable table(3, {3, 64});
  EXPECT_TRUE(table.Join(2).empty());
  EXPECT_FALSE(table.Arrive(0, AskJoinable("a"), At(0)));
  const auto decision = table.Arrive(1, AskJoinable("a"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_TRUE(decision->refusal.ok());
}

TEST(NegotiationTest, ARankThatJoinsMayHaveBeenTheOnlyOneMissing) {
  NegotiationTable table(3, {3, 64});
  for (int rank : {0, 1}) EXPECT_FALSE(table.Arrive(rank, AskJoinable("a"), At(0)));
  EXPECT_FALSE(table.Arrive(0, AskJoinable("b"), At(0)));
  const auto decisions = table.Join(2);
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].name, "a");
  EXPECT_EQ(table.waiting(), 1u);
}

TEST(NegotiationTest, RefusesWhatZerosWouldSpoil) {
  NegotiationTable table(2, {3, 64});
  EXPECT_TRUE(table.Join(1).empty());
  const auto decision = table.Arrive(0, Ask("a", 1, "allgather 'a' float32[2]"), At(0));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->refusal.code(), Code::kMismatch);
  EXPECT_EQ(decision->refusal.message(),
            "allgather 'a' float32[2] cannot run: rank 1 has joined, and until all ranks have joined only all-reduce "
            "with Average or Sum works");
}

TEST(NegotiationTest, JoinedRanksAreNotMissing) {
  NegotiationTable table(3, {3, 64});
  table.Join(1);
  EXPECT_FALSE(table.Arrive(0, AskJoinable("a"), At(0)));
  EXPECT_EQ(table.Overdue(At(11)).peer(), 2);
  EXPECT_NE(table.Stalled(At(11), 5)[0].find("for rank 2"), std::string::npos);
}

TEST(NegotiationTest, AfterwardsAllRanksAreNeededAgain) {
  NegotiationTable table(2, {3, 64});
  table.Join(1);
  table.Join(0);
  table.Return();
  EXPECT_FALSE(table.Arrive(0, AskJoinable("a"), At(0)));
  EXPECT_TRUE(table.Arrive(1, AskJoinable("a"), At(0)));
}

TEST(NegotiationTest, ARankThatHadJoinedAgreesOnAPlanLater) {
  NegotiationTable table(2, {3, 64});
  Request plan = AskJoinable("plan");
  plan.subject = Subject::kPlan;
  table.Join(1);
  const auto first = table.Arrive(0, plan, At(0));
  ASSERT_TRUE(first);
  table.Join(0);
  table.Return();
  const auto later = table.Arrive(1, plan, At(0));
  ASSERT_TRUE(later);
  EXPECT_TRUE(later->refusal.ok());
  EXPECT_EQ(later->channel, first->channel);
}

TEST(NegotiationTest, ARankThatAgreesOnAPlanLaterMustMeanTheSame) {
  NegotiationTable table(2, {3, 64});
  Request plan = AskJoinable("plan");
  plan.subject = Subject::kPlan;
  table.Join(0);
  ASSERT_TRUE(table.Arrive(1, plan, At(0)));
  table.Join(1);
  table.Return();
  plan.signature = 2;
  plan.view = "another";
  const auto later = table.Arrive(0, plan, At(0));
  ASSERT_TRUE(later);
  EXPECT_EQ(later->refusal.code(), Code::kMismatch);
  EXPECT_NE(later->refusal.message().find("rank 0: another; rank 1: view"), std::string::npos);
}

}  // namespace
}  // namespace tfc
