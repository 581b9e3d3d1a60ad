// The layout of ranks on nodes, and this rank's place in it. Pure.
#ifndef TFCOLLECTIVE_COMMUNICATOR_TOPOLOGY_H_
#define TFCOLLECTIVE_COMMUNICATOR_TOPOLOGY_H_

#include <string>
#include <vector>

namespace tfc {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int cross_rank = 0;
  std::vector<int> local_ranks;              // world ranks of this node, ascending
  std::vector<int> cross_ranks;              // world ranks with this local rank, one a node that has it
  std::vector<std::vector<int>> node_ranks;  // world ranks of each node; nodes ordered by lowest rank

  int local_size() const { return static_cast<int>(local_ranks.size()); }
  int cross_size() const { return static_cast<int>(cross_ranks.size()); }
  int nodes() const { return static_cast<int>(node_ranks.size()); }
};

// `node_ids[r]` names the node of rank r.
Topology MakeTopology(int rank, const std::vector<std::string>& node_ids);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COMMUNICATOR_TOPOLOGY_H_
