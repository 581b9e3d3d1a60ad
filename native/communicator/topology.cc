#include "communicator/topology.h"

#include <algorithm>

namespace tfc {

Topology MakeTopology(int rank, const std::vector<std::string>& node_ids) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(node_ids.size());
  std::vector<std::string> nodes;
  for (int r = 0; r < topology.size; ++r) {
    const std::string& id = node_ids[static_cast<size_t>(r)];
    const auto found = std::find(nodes.begin(), nodes.end(), id);
    const auto node = static_cast<size_t>(found - nodes.begin());
    if (found == nodes.end()) {
      nodes.push_back(id);
      topology.node_ranks.emplace_back();
    }
    topology.node_ranks[node].push_back(r);
  }
  for (const auto& ranks : topology.node_ranks) {
    const auto here = std::find(ranks.begin(), ranks.end(), rank);
    if (here == ranks.end()) continue;
    topology.local_ranks = ranks;
    topology.local_rank = static_cast<int>(here - ranks.begin());
  }
  for (const auto& ranks : topology.node_ranks) {
    if (static_cast<int>(ranks.size()) <= topology.local_rank) continue;
    const int peer = ranks[static_cast<size_t>(topology.local_rank)];
    if (peer == rank) topology.cross_rank = topology.cross_size();
    topology.cross_ranks.push_back(peer);
  }
  return topology;
}

}  // namespace tfc
