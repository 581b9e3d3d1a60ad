#include "executor/timeline.h"

#include <gtest/gtest.h>

#include <string>

namespace tfc {
namespace {

TimelineEvent Named(const std::string& name) {
  TimelineEvent event;
  event.name = name;
  return event;
}

TEST(TimelineTest, RecordsNothingUntilStarted) {
  Timeline timeline;
  timeline.Add(Named("early"));
  timeline.Start(10);
  timeline.Add(Named("a"));
  const Timeline::Recorded recorded = timeline.Stop();
  timeline.Add(Named("late"));
  ASSERT_EQ(recorded.events.size(), 1u);
  EXPECT_EQ(recorded.events[0].name, "a");
  EXPECT_TRUE(timeline.Stop().events.empty());
}

TEST(TimelineTest, KeepsTheLastEventsAndCountsTheOthers) {
  Timeline timeline;
  timeline.Start(2);
  for (const char* name : {"a", "b", "c"}) timeline.Add(Named(name));
  const Timeline::Recorded recorded = timeline.Stop();
  ASSERT_EQ(recorded.events.size(), 2u);
  EXPECT_EQ(recorded.events[0].name, "b");
  EXPECT_EQ(recorded.dropped, 1u);
}

TEST(TimelineTest, AnOperationThatWasNotHandedOverWasSubmittedWhenItBegan) {
  Operation operation;
  operation.name = "x";
  const TimelineEvent event = OperationEvent(operation, 3, 7, 100);
  EXPECT_EQ(event.submitted_ns, 100);
  EXPECT_EQ(event.channel, 3u);
  EXPECT_EQ(event.sequence, 7u);
  EXPECT_GE(event.ended_ns, event.began_ns);
}

}  // namespace
}  // namespace tfc
