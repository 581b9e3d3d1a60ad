#include "base/event_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tfc {
namespace {

TEST(EventCountTest, WhatHoldsAlreadyNeedsNoEvent) {
  EventCount events;
  EXPECT_TRUE(events.WaitUntil(Deadline::After(0), [] { return true; }));
}

TEST(EventCountTest, TheDeadlineEndsAWait) {
  EventCount events;
  const Deadline deadline = Deadline::After(0.01);
  EXPECT_FALSE(events.WaitUntil(deadline, [] { return false; }));
  EXPECT_TRUE(deadline.Passed());
}

// Every event comes between two looks of the thread that waits for it, or while it sleeps.
TEST(EventCountTest, NoEventIsLost) {
  constexpr int kTurns = 2000;
  EventCount events;
  std::atomic<int> turn{0};
  const auto play = [&](int parity) {
    for (int mine = parity; mine < kTurns; mine += 2) {
      ASSERT_TRUE(events.WaitUntil(Deadline::After(60), [&] { return turn == mine; }));
      ++turn;
      events.Notify();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn, kTurns);
}

TEST(EventCountTest, AnEventWakesAllThatWait) {
  EventCount events;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { EXPECT_TRUE(events.WaitUntil(Deadline::After(60), [&] { return done.load(); })); });
  done = true;
  events.Notify();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tfc
