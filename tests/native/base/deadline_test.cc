#include "base/deadline.h"

#include <gtest/gtest.h>

#include <limits>

namespace tfc {
namespace {

TEST(DeadlineTest, SecondsThatTheClockCannotCountAreThirtyYears) {
  const auto longest = Deadline::Seconds(1e9);
  EXPECT_EQ(Deadline::Seconds(1e300), longest);
  EXPECT_EQ(Deadline::Seconds(std::numeric_limits<double>::infinity()), longest);
  EXPECT_EQ(Deadline::Seconds(std::numeric_limits<double>::quiet_NaN()), longest);
  EXPECT_EQ(Deadline::Seconds(-std::numeric_limits<double>::infinity()), -longest);
}

}  // namespace
}  // namespace tfc
