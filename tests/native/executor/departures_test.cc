#include "executor/departures.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

TEST(DeparturesTest, OnlyNewsIsAnnounced) {
  EventCount events;
  Departures departures(4, &events);
  EXPECT_TRUE(departures.Announce(1, {{0, 5}}));
  EXPECT_FALSE(departures.Announce(2, {{0, 5}}));
  EXPECT_TRUE(departures.Announce(3, {{0, 4}}));
  EXPECT_TRUE(departures.Announce(0, {{0, 5}}));  // its connections end
}

TEST(DeparturesTest, AConnectionMayEndAfterALeaveOnly) {
  EventCount events;
  Departures departures(3, &events);
  EXPECT_FALSE(departures.Close(1));
  departures.Announce(2, {});  // before the news comes back
  EXPECT_TRUE(departures.Close(2));
  departures.Leave(0);
  EXPECT_TRUE(departures.Close(0));
}

TEST(DeparturesTest, AllAreGoneWhenEachHasLeftOrIsLost) {
  EventCount events;
  Departures departures(3, &events);
  departures.Announce(0, {{0, 5}});
  departures.Leave(0);
  departures.Announce(1, {{0, 5}});
  departures.Close(2);
  const Deadline deadline = Deadline::After(60);
  departures.WaitForAll(deadline);
  EXPECT_FALSE(deadline.Passed());
}

}  // namespace
}  // namespace tfc
