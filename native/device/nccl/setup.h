// The report of each rank about its GPU before NCCL connects them, and the check that the reports fit. Pure.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_SETUP_H_
#define TFCOLLECTIVE_DEVICE_NCCL_SETUP_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "communicator/topology.h"

namespace tfc {

struct SetupEntry {
  int nccl_version = 0;
  std::string nccl_path;
  std::string gpu;  // for people: "GPU 0 (NVIDIA H200, 0000:1b:00.0)"
  std::string uuid;
  std::string id;  // rank 0: NCCL's unique id
};

std::string Encode(const SetupEntry& entry);
Status Decode(const std::string& bytes, SetupEntry* entry);

// Ok, or the same error on all ranks: MISMATCH where versions of NCCL differ, FAILED_PRECONDITION where ranks share a
// GPU and must not.
Status JudgeSetup(const std::vector<SetupEntry>& entries, const Topology& topology, bool share_gpus);

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_SETUP_H_
