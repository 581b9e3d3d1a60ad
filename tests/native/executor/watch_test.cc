#include "executor/watch.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

Operation Named(const std::string& name) {
  Operation operation;
  operation.name = name;
  return operation;
}

TEST(WatchTest, ARankThatHasDoneItsPartMayLeave) {
  WatchList watch;
  const Operation operation = Named("a");
  bool owed = true;
  ASSERT_TRUE(watch.Begin(5, 0, operation, &owed).ok());
  EXPECT_FALSE(owed);
  EXPECT_TRUE(watch.Depart(1, {{5, 1}}).ok());
  watch.End(5, true);
  const Status next = watch.Begin(5, 1, operation, &owed);
  EXPECT_EQ(next.code(), Code::kPeerLost);
  EXPECT_EQ(next.peer(), 1);
}

TEST(WatchTest, ARankThatLeavesInTheMiddleIsMissed) {
  WatchList watch;
  const Operation operation = Named("a");
  bool owed = false;
  ASSERT_TRUE(watch.Begin(5, 3, operation, &owed).ok());
  const Status blocked = watch.Depart(2, {{5, 3}});
  EXPECT_EQ(blocked.code(), Code::kPeerLost);
  EXPECT_NE(blocked.message().find("barrier 'a'"), std::string::npos) << blocked.message();
}

TEST(WatchTest, AViewOfTheFutureIsOwed) {
  WatchList watch;
  const Operation operation = Named("a");
  EXPECT_EQ(watch.View(0, 0).text, "");
  bool owed = false;
  ASSERT_TRUE(watch.Begin(0, 0, operation, &owed).ok());
  EXPECT_TRUE(owed);
  EXPECT_EQ(watch.View(0, 0).text, "barrier 'a'");
  EXPECT_EQ(watch.View(0, 0).signature, operation.Signature());
  watch.End(0, true);
  EXPECT_EQ(watch.View(0, 0).text, "has completed it already");
  EXPECT_EQ(watch.View(0, 0).signature, 0u);
}

TEST(WatchTest, CountsAndStalls) {
  WatchList watch;
  const Operation operation = Named("a");
  bool owed = false;
  ASSERT_TRUE(watch.Begin(1, 7, operation, &owed).ok());
  const auto now = Deadline::Clock::now();
  EXPECT_TRUE(watch.Stalled(now, 60).empty());
  const auto stalls = watch.Stalled(now + std::chrono::seconds(61), 60);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_EQ(stalls[0].title, "barrier 'a'");
  EXPECT_EQ(stalls[0].channel, 1u);
  EXPECT_EQ(stalls[0].sequence, 7u);
  EXPECT_TRUE(watch.Stalled(now + std::chrono::seconds(62), 60).empty());
  EXPECT_EQ(watch.active(), 1u);
  EXPECT_EQ(watch.Oldest(), "barrier 'a'");
  watch.End(1, true);
  EXPECT_EQ(watch.active(), 0u);
  EXPECT_EQ(watch.Oldest(), "");
  EXPECT_EQ(watch.completed(), 1u);
  EXPECT_EQ(watch.progress(), (Progress{{1, 1}}));
}

TEST(WatchTest, WhatNoThreadSawCounts) {
  WatchList watch;
  for (int i = 0; i < 3; ++i) watch.CompletedUnseen();
  EXPECT_EQ(watch.completed(), 3u);
  EXPECT_EQ(watch.progress(), (Progress{{0, 3}}));
  EXPECT_EQ(watch.View(0, 2).text, "has completed it already");
  EXPECT_EQ(watch.View(0, 3).text, "");
  const Operation operation = Named("a");
  bool owed = false;
  ASSERT_TRUE(watch.Begin(0, 3, operation, &owed).ok());
  EXPECT_TRUE(owed);
  EXPECT_TRUE(watch.Depart(1, {{0, 4}}).ok());
  watch.End(0, true);
  EXPECT_EQ(watch.progress(), (Progress{{0, 4}}));
}

}  // namespace
}  // namespace tfc
