// Worlds of several nodes: an arena for each node, the memory transport between them.
#include "collectives/algorithms/hierarchical.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "algorithms/arena_worlds.h"
#include "algorithms/values.h"
#include "algorithms/worlds.h"

namespace tfc {
namespace {

// Ranks 0, 1, 2, ... fill the nodes one after the other.
struct Nodes {
  std::vector<int> sizes;

  int ranks() const { return std::accumulate(sizes.begin(), sizes.end(), 0); }
  int smallest() const { return *std::min_element(sizes.begin(), sizes.end()); }
};

// The i-th local rank of every node that has one.
Members ShardOf(const Nodes& nodes, int node, int local_rank) {
  Members shard;
  int first = 0;
  for (size_t i = 0; i < nodes.sizes.size(); ++i) {
    if (static_cast<int>(i) == node) shard.index = shard.size();
    if (local_rank < nodes.sizes[i]) shard.ranks.push_back(first + local_rank);
    first += nodes.sizes[i];
  }
  return shard;
}

struct Rank {
  int rank;
  ArenaRank& node;
  Transport& transport;
  Members shard;
};

void OnEveryRankOf(const Nodes& nodes, const std::function<void(Rank&)>& body) {
  MemoryHub hub(MemoryHubOptions{nodes.ranks(), 0});
  std::vector<std::unique_ptr<Transport>> transports = hub.MakeAll();
  std::vector<std::thread> threads;
  int first = 0;
  for (size_t node = 0; node < nodes.sizes.size(); ++node) {
    threads.emplace_back([&, node, first] {
      OnEveryArenaRank(ArenaWorld{nodes.sizes[node]}, [&](ArenaRank& arena) {
        const int rank = first + arena.rank();
        Rank self{rank, arena, *transports[static_cast<size_t>(rank)],
                  ShardOf(nodes, static_cast<int>(node), arena.rank())};
        body(self);
      });
    });
    first += nodes.sizes[node];
  }
  for (std::thread& thread : threads) thread.join();
}

struct Case {
  Dtype dtype;
  Op op;
  size_t count;
  int shards;
  bool in_place;
};

std::vector<Case> CasesOf(const Nodes& nodes) {
  std::vector<Case> cases;
  for (int shards = 1; shards <= nodes.smallest(); ++shards) {
    for (Dtype dtype : AllDtypes()) {
      for (size_t count : {0, 1, 2, 3, 7, 64, 1000}) {
        const Op op = dtype == Dtype::kBool ? Op::kMax : Op::kAverage;
        cases.push_back({dtype, op, count, shards, count % 2 == 0});
        cases.push_back({dtype, Op::kMin, count, shards, count % 2 == 1});
      }
    }
    cases.push_back({Dtype::kFloat32, Op::kAverage, 1300003, shards, true});
    cases.push_back({Dtype::kBfloat16, Op::kSum, 400003, shards, false});
    cases.push_back({Dtype::kFloat16, Op::kAverage, 2300003, shards, true});  // several blocks
  }
  return cases;
}

Status AllReduce(Rank& self, uint64_t sequence, const Case& one, const ConstSpans& from, const MutableSpans& to,
                 int size) {
  const bool average = one.op == Op::kAverage;
  const Reduction reduction{one.dtype, average ? Op::kSum : one.op, 1.0, 1.0, average ? size : 1};
  const TransportContext shard{self.transport, self.shard, Deadline::After(60.0), 1, sequence, 7, 0};
  return HierarchicalAllReduce(self.node.Next(), shard, one.shards, reduction, from, to);
}

class Hierarchical : public ::testing::TestWithParam<Nodes> {};

TEST_P(Hierarchical, AllReducesExactly) {
  const Nodes nodes = GetParam();
  const std::vector<Case> cases = CasesOf(nodes);
  OnEveryRankOf(nodes, [&](Rank& self) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      const size_t element = DtypeSize(one.dtype);
      Bytes input = InputBytes(one.dtype, one.op, nodes.ranks(), self.rank, one.count), output(input.size());
      Bytes& result = one.in_place ? input : output;
      const Status status = AllReduce(self, i, one, AsConst(CutUp(input.data(), input.size(), element, i % 3)),
                                      CutUp(result.data(), result.size(), element, i % 3), nodes.ranks());
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(result == ExpectedBytes(one.dtype, one.op, nodes.ranks(), one.count))
          << DtypeName(one.dtype) << " x" << one.count << " shards " << one.shards << " rank " << self.rank;
    }
  });
}

TEST_P(Hierarchical, RanksAgreeBitwiseOnInexactSums) {
  const Nodes nodes = GetParam();
  std::vector<Bytes> results(static_cast<size_t>(nodes.ranks()), Bytes(40004));
  OnEveryRankOf(nodes, [&](Rank& self) {
    Bytes& data = results[static_cast<size_t>(self.rank)];
    uint32_t state = 99u + static_cast<uint32_t>(self.rank);
    for (std::byte& byte : data) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
    const Case one{Dtype::kFloat32, Op::kSum, 10001, nodes.smallest(), true};
    const Status status =
        AllReduce(self, 0, one, {{data.data(), data.size()}}, {{data.data(), data.size()}}, nodes.ranks());
    ASSERT_TRUE(status.ok()) << status.message();
  });
  for (const Bytes& result : results) EXPECT_TRUE(result == results[0]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Hierarchical,
                         ::testing::Values(Nodes{{1, 1}}, Nodes{{2, 2}}, Nodes{{3, 1}}, Nodes{{2, 3, 1}}, Nodes{{3, 2}},
                                           Nodes{{2, 2, 2}}),
                         [](const ::testing::TestParamInfo<Nodes>& info) {
                           std::string name = "nodes";
                           for (int size : info.param.sizes) name += std::to_string(size);
                           return name;
                         });

}  // namespace
}  // namespace tfc
