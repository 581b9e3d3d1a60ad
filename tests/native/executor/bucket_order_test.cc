#include "executor/bucket_order.h"

#include <gtest/gtest.h>

#include <string>

namespace tfc {
namespace {

TEST(BucketOrderTest, WaitsForItsTurn) {
  BucketOrder<std::string> order(3);
  order.Start(2, "c");
  order.Start(1, "b");
  EXPECT_FALSE(order.Next());
  order.Start(0, "a");
  EXPECT_EQ(order.Next(), "a");
  EXPECT_EQ(order.Next(), "b");
  EXPECT_EQ(order.Next(), "c");
  EXPECT_FALSE(order.Next());
  EXPECT_EQ(order.cursor(), 0u);
}

TEST(BucketOrderTest, ASecondStartBelongsToTheNextStep) {
  BucketOrder<std::string> order(2);
  order.Start(0, "a1");
  order.Start(0, "a2");
  order.Start(1, "b1");
  EXPECT_EQ(order.Next(), "a1");
  EXPECT_EQ(order.Next(), "b1");
  EXPECT_EQ(order.Next(), "a2");
  EXPECT_FALSE(order.Next());
  EXPECT_EQ(order.cursor(), 1u);
}

TEST(BucketOrderTest, TakeAllEmptiesIt) {
  BucketOrder<int> order(3);
  order.Start(2, 7);
  order.Start(1, 8);
  EXPECT_EQ(order.Waiting().size(), 2u);
  EXPECT_EQ(order.TakeAll(), (std::vector<int>{8, 7}));
  EXPECT_TRUE(order.Waiting().empty());
}

}  // namespace
}  // namespace tfc
