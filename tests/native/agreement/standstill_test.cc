#include "agreement/standstill.h"

#include <gtest/gtest.h>

#include "agreement/messages.h"

namespace tfc {
namespace {

using Next = StandstillRecord::Next;
using Said = std::map<int, Standstill>;

Standstill In(uint32_t channel, uint64_t sequence, const std::string& title = "call", uint64_t signature = 1) {
  return {true, 0, {{channel, sequence}}, {{channel, sequence, signature, title}}};
}

Standstill Waiting() { return {true, 0, {}, {}}; }

TEST(DeadlockTest, RanksInDifferentOperationsWaitForEachOther) {
  const Status found =
      Deadlock(2, Said{{0, In(0, 4, "allreduce 'metrics'")}, {1, In(3, 16, "gradients of step 17")}}, {});
  EXPECT_EQ(found.code(), Code::kMismatch);
  EXPECT_NE(found.message().find("rank 0: allreduce 'metrics'; rank 1: gradients of step 17"), std::string::npos)
      << found.message();
}

TEST(DeadlockTest, SoDoRanksThatHaveAskedForDifferentNames) {
  const Said said{{0, Waiting()}, {1, Waiting()}, {2, In(0, 0)}};
  EXPECT_EQ(Deadlock(3, said, {{0, "a"}, {1, "b"}}).code(), Code::kMismatch);
  EXPECT_EQ(Deadlock(3, said, {{0, "a"}, {1, "a"}}).code(), Code::kMismatch);
  EXPECT_TRUE(Deadlock(3, said, {{0, "a"}}).ok());  // rank 1 waits in nothing that rank 0 knows of
}

TEST(DeadlockTest, ARankThatDoesNotStandStillMayComeToAll) {
  EXPECT_TRUE(Deadlock(3, Said{{0, In(0, 4)}, {1, In(3, 16)}}, {}).ok());
}

TEST(DeadlockTest, AnOperationToWhichAllHaveComeEndsByItself) {
  EXPECT_TRUE(Deadlock(2, Said{{0, In(3, 16)}, {1, In(3, 16)}}, {}).ok());
  // Rank 0 has done its part of the operation in which rank 1 is: what it has sent is on its way.
  EXPECT_TRUE(Deadlock(2, Said{{0, In(3, 17)}, {1, In(3, 16)}}, {}).ok());
  Standstill two = In(3, 16);
  two.running.push_back({0, 4, 1, "another"});
  EXPECT_TRUE(Deadlock(2, Said{{0, two}, {1, In(3, 16)}}, {}).ok());
}

TEST(DeadlockTest, OperationsThatDifferAtOnePlaceNeverMeet) {
  EXPECT_FALSE(Deadlock(2, Said{{0, In(0, 4, "barrier", 7)}, {1, In(0, 4, "allreduce", 8)}}, {}).ok());
}

TEST(StandstillRecordTest, AllAreAskedOnceMoreBeforeAJobEnds) {
  StandstillRecord record(2);
  EXPECT_EQ(record.Take(0, In(0, 4), {}), Next::kNothing);
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kAskAll);
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kNothing);
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kNothing);
  EXPECT_EQ(record.Take(0, In(0, 4), {}), Next::kFail);
  EXPECT_EQ(record.failure().code(), Code::kMismatch);
}

TEST(StandstillRecordTest, ARankThatGoesOnEndsTheSuspicion) {
  StandstillRecord record(2);
  record.Take(0, In(0, 4), {});
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kAskAll);
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kNothing);
  EXPECT_EQ(record.Take(0, Standstill(), {}), Next::kNothing);
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kNothing);
  EXPECT_EQ(record.Take(0, In(0, 5), {}), Next::kAskAll);  // stands still again, elsewhere
  EXPECT_EQ(record.Take(0, In(0, 5), {}), Next::kNothing);
  EXPECT_EQ(record.Take(1, In(3, 16), {}), Next::kFail);
}

TEST(StandstillRecordTest, ARankThatHasBegunMoreIsAskedAnew) {
  StandstillRecord record(2);
  record.Take(0, In(0, 4), {});
  record.Take(1, In(3, 16), {});
  Standstill more = In(3, 16);
  more.begun = 1;
  EXPECT_EQ(record.Take(1, more, {}), Next::kAskAll);
  EXPECT_EQ(record.Take(0, In(0, 4), {}), Next::kNothing);
  EXPECT_EQ(record.Take(1, more, {}), Next::kFail);
}

TEST(StandstillRecordTest, ADecisionOfRankZeroMeanwhileEndsTheSuspicion) {
  StandstillRecord record(2);
  record.Take(0, Waiting(), {{0, "a"}});
  EXPECT_EQ(record.Take(1, In(0, 0), {{0, "a"}}), Next::kAskAll);
  EXPECT_EQ(record.Take(0, Waiting(), {{0, "a"}}), Next::kNothing);
  EXPECT_EQ(record.Take(1, In(0, 0), {}), Next::kNothing);
}

TEST(StandstillTest, SurvivesTheWire) {
  Standstill back;
  ASSERT_TRUE(Decode(Encode(In(3, 16)), &back).ok());
  EXPECT_TRUE(back == In(3, 16));
  EXPECT_EQ(back.running[0].title, "call");
}

}  // namespace
}  // namespace tfc
