#include "algorithms/select.h"

#include <gtest/gtest.h>

#include "algorithms/hierarchical.h"

namespace tfc {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

TEST(SelectAlgorithm, DependsOnWhoSharesMemory) {
  const Layout alone{1, 1, 1, 1, true};
  const Layout one_node{4, 1, 4, 4, true};
  const Layout one_node_tcp{4, 1, 4, 4, false};
  const Layout one_rank_a_node{4, 4, 1, 1, true};
  const Layout uneven{3, 2, 1, 2, true};
  const Layout uneven_tcp{3, 2, 1, 2, false};
  EXPECT_EQ(SelectAllReduce(alone), Algorithm::kAlone);
  EXPECT_EQ(SelectAllReduce(one_node), Algorithm::kArena);
  EXPECT_EQ(SelectAllReduce(one_node_tcp), Algorithm::kFlat);
  EXPECT_EQ(SelectAllReduce(one_rank_a_node), Algorithm::kFlat);
  EXPECT_EQ(SelectAllReduce(uneven), Algorithm::kHierarchical);
  EXPECT_EQ(SelectAllReduce(uneven_tcp), Algorithm::kFlat);
  EXPECT_EQ(SelectOther(alone), Algorithm::kAlone);
  EXPECT_EQ(SelectOther(one_node), Algorithm::kArena);
  EXPECT_EQ(SelectOther(uneven), Algorithm::kFlat);
}

TEST(SelectLanes, GrowWithTheBufferUpToTheSmallestNode) {
  const Layout layout{16, 2, 4, 12, true};
  EXPECT_EQ(SelectLanes(0, layout), 1);
  EXPECT_EQ(SelectLanes(4, layout), 1);
  EXPECT_EQ(SelectLanes(33 * kKiB, layout), 2);
  EXPECT_EQ(SelectLanes(64 * kMiB, layout), 4);
}

TEST(SelectAllReduceShape, SmallBuffersDoubleLargeOnesGoRound) {
  for (int size = 2; size <= 64; ++size) {
    EXPECT_EQ(SelectAllReduceShape(0, size), AllReduceShape::kRecursiveDoubling) << size;
    EXPECT_EQ(SelectAllReduceShape(4, size), AllReduceShape::kRecursiveDoubling) << size;
    EXPECT_EQ(SelectAllReduceShape(64 * kMiB, size), AllReduceShape::kRing) << size;
  }
  EXPECT_EQ(SelectAllReduceShape(200 * kKiB, 2), AllReduceShape::kRecursiveDoubling);
  EXPECT_EQ(SelectAllReduceShape(200 * kKiB, 3), AllReduceShape::kRing);
}

TEST(SelectBroadcastShape, LongBuffersGoThroughTheChainUnlessItIsTooLong) {
  EXPECT_EQ(SelectBroadcastShape(0, 2), BroadcastShape::kBinomial);
  EXPECT_EQ(SelectBroadcastShape(200 * kKiB, 8), BroadcastShape::kBinomial);
  EXPECT_EQ(SelectBroadcastShape(64 * kMiB, 2), BroadcastShape::kChain);
  EXPECT_EQ(SelectBroadcastShape(64 * kMiB, 64), BroadcastShape::kChain);
  EXPECT_EQ(SelectBroadcastShape(kMiB, 64), BroadcastShape::kBinomial);
}

TEST(LaneOffsets, GiveRanksBeyondTheLanesNothing) {
  EXPECT_EQ(LaneOffsets(40, 4, 2, 4), (std::vector<size_t>{0, 20, 40, 40, 40}));
  EXPECT_EQ(LaneOffsets(28, 4, 2, 2), (std::vector<size_t>{0, 16, 28}));
  EXPECT_EQ(LaneOffsets(0, 8, 3, 3), (std::vector<size_t>{0, 0, 0, 0}));
  EXPECT_EQ(LaneOffsets(2, 2, 3, 3), (std::vector<size_t>{0, 2, 2, 2}));
}

}  // namespace
}  // namespace tfc
