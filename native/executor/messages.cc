#include "executor/messages.h"

#include "executor/channels.h"

namespace tfc {
namespace {

Status CheckRank(const char* what, int rank, int world_size) {
  if (rank >= 0 && rank < world_size) return Status::Ok();
  return Status(Code::kProtocol,
                std::string(what) + " rank " + std::to_string(rank) + " of a world of " + std::to_string(world_size));
}

Status NoPlans(const char* what, uint32_t channel) {
  return Status(Code::kProtocol,
                std::string(what) + " the channel " + std::to_string(channel) + ", which is no plan's");
}

}  // namespace

Status CheckDirection(Message type, int from, int self) {
  switch (type) {
    case Message::kReady:
    case Message::kRequest:
    case Message::kAbort:
    case Message::kTrouble:
    case Message::kView:
    case Message::kLeave:
    case Message::kJoin:
    case Message::kNoted:
    case Message::kMissing:
    case Message::kJoinTimeout:
    case Message::kForget:
    case Message::kStandstill:
      return self == 0 ? Status::Ok() : Status(Code::kProtocol, "only rank 0 receives it");
    case Message::kGo:
    case Message::kDecision:
    case Message::kFailed:
    case Message::kViewQuery:
    case Message::kLeft:
    case Message::kJoined:
    case Message::kZeroContribution:
    case Message::kAllJoined:
    case Message::kFreed:
    case Message::kStandstillQuery:
      return from == 0 ? Status::Ok() : Status(Code::kProtocol, "only rank 0 sends it");
  }
  return Status::Ok();  // of no known kind, which its receiver says
}

RanksByProgress Grouped(const Joins& joins) {
  RanksByProgress groups;
  for (const auto& [rank, progress] : joins) groups[progress].push_back(rank);
  return groups;
}

Status Check(const Decision& decision, int world_size) {
  if (!decision.blobs.empty() && static_cast<int>(decision.blobs.size()) != world_size)
    return Status(Code::kProtocol, "a decision for another number of ranks");
  if (decision.subject != Subject::kPlan || decision.channel == kNoPlanChannel) return Status::Ok();
  if (decision.on_gpus ? IsGpuPlanChannel(decision.channel) : IsPlanChannel(decision.channel)) return Status::Ok();
  return NoPlans("a plan on", decision.channel);
}

Status Check(const Left& left, int world_size) { return CheckRank("the departure of", left.rank, world_size); }

Status Check(const AllJoined& all, int world_size) { return CheckRank("the join of", all.last_rank, world_size); }

Status Check(const RanksByProgress& joins, int world_size) {
  for (const auto& [progress, ranks] : joins)
    for (const int rank : ranks) TFC_RETURN_IF_ERROR(CheckRank("the join of", rank, world_size));
  return Status::Ok();
}

Status Check(const Freed& freed, int) {
  if (IsPlanChannel(freed.channel) || IsGpuPlanChannel(freed.channel)) return Status::Ok();
  return NoPlans("freed", freed.channel);
}

// Those of an average or a sum, in the host's memory.
Status Check(const ZeroContribution& contribution, int) {
  if (contribution.channel < kProbeChannel && TakesZeroContributions(contribution.operation)) return Status::Ok();
  return Status(Code::kProtocol, contribution.operation.Title() + " on channel " +
                                     std::to_string(contribution.channel) + " takes no contribution of zeros");
}

}  // namespace tfc
