#include "executor/frontier.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

TEST(FrontierTest, OnlyWhoCameLessFarOnAChannelSaysSomethingNew) {
  Frontier frontier;
  EXPECT_FALSE(frontier.Misses(0, 100));
  EXPECT_TRUE(frontier.Add({{0, 5}, {1, 3}}));
  EXPECT_FALSE(frontier.Add({{0, 5}, {1, 3}}));
  EXPECT_FALSE(frontier.Add({{0, 6}, {1, 3}, {2, 1}}));
  EXPECT_FALSE(frontier.Misses(0, 4));
  EXPECT_TRUE(frontier.Misses(0, 5));
  EXPECT_TRUE(frontier.Misses(2, 0)) << "the first one has done nothing on that channel";
  EXPECT_TRUE(frontier.Add({{0, 9}}));
  EXPECT_TRUE(frontier.Misses(1, 0));
  EXPECT_FALSE(frontier.Misses(0, 4));
  frontier.Clear();
  EXPECT_FALSE(frontier.Misses(1, 0));
  EXPECT_TRUE(frontier.Add({}));
}

}  // namespace
}  // namespace tfc
