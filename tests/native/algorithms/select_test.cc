#include "collectives/algorithms/select.h"

#include <gtest/gtest.h>

#include "collectives/algorithms/hierarchical.h"
#include "collectives/algorithms/link_probe.h"

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

TEST(SelectShards, GrowWithTheBufferUpToTheSmallestNode) {
  const Layout layout{16, 2, 4, 12, true};
  EXPECT_EQ(SelectShards(0, layout), 1);
  EXPECT_EQ(SelectShards(4, layout), 1);
  EXPECT_EQ(SelectShards(33 * kKiB, layout), 2);
  EXPECT_EQ(SelectShards(64 * kMiB, layout), 4);
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

TEST(SelectAllReduceShape, HalvesAndDoublesInBetweenWhereThatSavesSteps) {
  EXPECT_EQ(SelectAllReduceShape(300 * kKiB, 4), AllReduceShape::kHalvingDoubling);
  EXPECT_EQ(SelectAllReduceShape(600 * kKiB, 8), AllReduceShape::kHalvingDoubling);
  EXPECT_EQ(SelectAllReduceShape(600 * kKiB, 6), AllReduceShape::kHalvingDoubling);
  EXPECT_EQ(SelectAllReduceShape(8 * kMiB, 8), AllReduceShape::kRing);
  for (const int size : {2, 3}) {  // as many steps round the ring
    for (size_t bytes = 1; bytes < 64 * kMiB; bytes *= 2)
      EXPECT_NE(SelectAllReduceShape(bytes, size), AllReduceShape::kHalvingDoubling) << bytes;
  }
}

TEST(SelectAllReduceShape, LinksWithMoreLatencyDoubleLongerAndGoRoundLater) {
  const Link ethernet{60e-6, 1 / 117e6, true};  // 1 Gbit/s
  EXPECT_EQ(SelectAllReduceShape(16 * kKiB, 4, ethernet), AllReduceShape::kRecursiveDoubling);
  EXPECT_EQ(SelectAllReduceShape(64 * kKiB, 4, ethernet), AllReduceShape::kHalvingDoubling);
  EXPECT_EQ(SelectAllReduceShape(8 * kMiB, 4, ethernet), AllReduceShape::kRing);
  const Link far{5e-3, 1 / 1e9, true};  // between two cities
  EXPECT_EQ(SelectAllReduceShape(200 * kKiB, 4, far), AllReduceShape::kRecursiveDoubling);
  EXPECT_EQ(SelectAllReduceShape(8 * kMiB, 4, far), AllReduceShape::kHalvingDoubling);
}

TEST(SelectAllReduceShape, NeverComesBackToWhatItHasLeft) {
  for (const Link& link : {Link(), Link{60e-6, 1 / 117e6, true}, Link{5e-3, 1e-9, true}, Link{1e-7, 1e-12, true}}) {
    for (int size = 2; size <= 33; ++size) {
      auto last = AllReduceShape::kRecursiveDoubling;
      for (size_t bytes = 1; bytes < size_t{1} << 34; bytes += bytes / 7 + 1) {
        const AllReduceShape shape = SelectAllReduceShape(bytes, size, link);
        EXPECT_GE(static_cast<int>(shape), static_cast<int>(last)) << size << " ranks, " << bytes << " bytes";
        last = shape;
      }
    }
  }
}

TEST(SelectDirect, WhereItCostsLessThanFloat32AndConnectsFew) {
  const Link ethernet{60e-6, 1 / 117e6, true};  // 1 Gbit/s
  for (const int size : {2, 3, 4, 8, 64}) {
    EXPECT_FALSE(SelectDirect(0, 2, size)) << size;
    EXPECT_FALSE(SelectDirect(1, 2, size)) << size;
    EXPECT_TRUE(SelectDirect(32 * kMiB, 2, size)) << size;
    EXPECT_TRUE(SelectDirect(32 * kMiB, 4, size)) << size;
    EXPECT_TRUE(SelectDirect(4 * kMiB, 2, size, ethernet)) << size;
  }
  EXPECT_FALSE(SelectDirect(32 * kMiB, 2, 65));
}

TEST(SecondsPerByte, SeesThroughReservesAndLateLooks) {
  EXPECT_DOUBLE_EQ(SecondsPerByte(1e-6, 1e-3 + 1e-6, 1e-6, 1000), 1e-6);  // the first one passed at once
  EXPECT_DOUBLE_EQ(SecondsPerByte(2e-3, 2e-3, 0, 1000), 1e-6);            // both had come when it was looked
  EXPECT_DOUBLE_EQ(SecondsPerByte(1.5e-3, 2.5e-3, 0.5e-3, 1000), 1e-6);   // both views agree
}

TEST(SelectBroadcastShape, LongBuffersGoThroughTheChainUnlessItIsTooLong) {
  EXPECT_EQ(SelectBroadcastShape(0, 2), BroadcastShape::kBinomial);
  EXPECT_EQ(SelectBroadcastShape(200 * kKiB, 8), BroadcastShape::kBinomial);
  EXPECT_EQ(SelectBroadcastShape(64 * kMiB, 2), BroadcastShape::kChain);
  EXPECT_EQ(SelectBroadcastShape(64 * kMiB, 64), BroadcastShape::kChain);
  EXPECT_EQ(SelectBroadcastShape(kMiB, 64), BroadcastShape::kBinomial);
}

TEST(ShardOffsets, GiveRanksBeyondTheShardsNothing) {
  EXPECT_EQ(ShardOffsets(40, 4, 2, 4), (std::vector<size_t>{0, 20, 40, 40, 40}));
  EXPECT_EQ(ShardOffsets(28, 4, 2, 2), (std::vector<size_t>{0, 16, 28}));
  EXPECT_EQ(ShardOffsets(0, 8, 3, 3), (std::vector<size_t>{0, 0, 0, 0}));
  EXPECT_EQ(ShardOffsets(2, 2, 3, 3), (std::vector<size_t>{0, 2, 2, 2}));
}

}  // namespace
}  // namespace tfc
