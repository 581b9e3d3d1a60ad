#include "device/nccl/setup.h"

#include <map>
#include <utility>

#include "agreement/negotiation.h"
#include "control/wire.h"
#include "device/nccl/nccl_api.h"

namespace tfc {
namespace {

Status JudgeVersions(const std::vector<SetupEntry>& entries) {
  std::map<int, std::string> views;
  bool equal = true;
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    views[static_cast<int>(rank)] =
        "NCCL " + NcclVersionText(entries[rank].nccl_version) + " (" + entries[rank].nccl_path + ")";
    equal = equal && entries[rank].nccl_version == entries[0].nccl_version;
  }
  if (equal) return Status::Ok();
  return Status(Code::kMismatch, "the ranks have different versions of NCCL: " + CompareViews(views));
}

Status JudgeSharing(const std::vector<SetupEntry>& entries, const Topology& topology) {
  for (const std::vector<int>& node : topology.node_ranks) {
    std::map<std::string, int> users;
    for (const int rank : node) {
      const SetupEntry& entry = entries[static_cast<size_t>(rank)];
      const auto [user, first] = users.emplace(entry.uuid, rank);
      if (first) continue;
      return Status(Code::kFailedPrecondition,
                    "ranks " + std::to_string(user->second) + " and " + std::to_string(rank) + " both use " +
                        entry.gpu + ": start no more ranks than GPUs (CUDA_VISIBLE_DEVICES, --gpus-per-proc), or " +
                        "allow it with --oversubscribe-gpus (NCCL 2.30.3 or newer)",
                    rank);
    }
  }
  return Status::Ok();
}

}  // namespace

std::string Encode(const SetupEntry& entry) {
  WireWriter writer;
  writer.Number(static_cast<int32_t>(entry.nccl_version)).Text(entry.nccl_path);
  return writer.Text(entry.gpu).Text(entry.uuid).Text(entry.id).Take();
}

Status Decode(const std::string& bytes, SetupEntry* entry) {
  WireReader reader(bytes);
  entry->nccl_version = reader.Number<int32_t>();
  entry->nccl_path = reader.Text();
  entry->gpu = reader.Text();
  entry->uuid = reader.Text();
  entry->id = reader.Text();
  return reader.Finish("the set-up of a GPU");
}

Status JudgeSetup(const std::vector<SetupEntry>& entries, const Topology& topology, bool share_gpus) {
  TFC_RETURN_IF_ERROR(JudgeVersions(entries));
  return share_gpus ? Status::Ok() : JudgeSharing(entries, topology);
}

}  // namespace tfc
