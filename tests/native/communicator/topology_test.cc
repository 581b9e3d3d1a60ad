#include "communicator/topology.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

TEST(TopologyTest, UnevenNodes) {
  const Topology topology = MakeTopology(3, {"a", "b", "a", "b", "a"});
  EXPECT_EQ(topology.size, 5);
  EXPECT_EQ(topology.nodes(), 2);
  EXPECT_EQ(topology.local_ranks, (std::vector<int>{1, 3}));
  EXPECT_EQ(topology.local_rank, 1);
  EXPECT_EQ(topology.cross_ranks, (std::vector<int>{2, 3}));
  EXPECT_EQ(topology.cross_rank, 1);
  EXPECT_EQ(MakeTopology(4, {"a", "b", "a", "b", "a"}).cross_size(), 1);
  EXPECT_EQ(MakeTopology(0, {"x", "x"}).nodes(), 1);
}

}  // namespace
}  // namespace tfc
