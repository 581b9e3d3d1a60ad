#include "collectives/algorithms/staging_rounds.h"

#include <string>
#include <vector>

namespace tfc {
namespace {

using Phase = PhaseDone::Phase;

// A rank that skipped an operation of the same kind differs too.
uint64_t SignatureInSequence(const ArenaContext& context) {
  return context.signature ^ (context.sequence * 0x9e3779b97f4a7c15u);
}

std::string Describe(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

const char* WhatIsMissing(Phase phase) {
  switch (phase) {
    case Phase::kReusable:
      return " did not finish the operation before this one";
    case Phase::kStaged:
      return " sent nothing";
    default:
      return " did not finish its part";
  }
}

Status Missing(const ArenaContext& context, const PhaseDone& done, Phase phase) {
  std::vector<int> missing = done.Missing();
  for (int& rank : missing) rank = context.WorldRank(rank);
  if (missing.empty()) return Status(Code::kDeadlineExceeded, "the peers came too late");
  return Status(Code::kDeadlineExceeded, Describe(missing) + WhatIsMissing(phase), missing.front());
}

}  // namespace

StagingRounds::StagingRounds(const ArenaContext& context, size_t bytes)
    : context_(context),
      channel_(context.arena, context.channel),
      first_(*context.round),
      tiny_(bytes <= ArenaChannel::kTinySize),
      signature_(SignatureInSequence(context)) {}

Status StagingRounds::AwaitStaged(uint64_t round, int local_rank) {
  if (round != 0) return Await(Phase::kStaged, round, local_rank);
  TFC_RETURN_IF_ERROR(Await(Phase::kStaged, round, PhaseDone::kAllRanks));
  return CompareSignatures();
}

Status StagingRounds::PublishAndAwait() {
  channel_.StoreStaged(first_, signature_);
  const PhaseDone staged(channel_, Phase::kStaged, first_);
  if (!channel_.crowded()) {
    for (int look = 0; look < kLooksBeforeWaking && !staged.Holds(); ++look) {
    }
  }
  channel_.WakePeers();
  return AwaitStaged(0);
}

Status StagingRounds::Pass() {
  TFC_RETURN_IF_ERROR(Open(0));
  Publish(0);
  Close(0);
  return Status::Ok();
}

Status StagingRounds::Await(Phase phase, uint64_t round, int local_rank) {
  const PhaseDone done(channel_, phase, first_ + round, local_rank);
  if (done.Holds()) return Status::Ok();
  Status status = context_.waiter.WaitFor(done, context_.deadline);
  if (status.code() == Code::kDeadlineExceeded) return Missing(context_, done, phase);
  return status;
}

Status StagingRounds::CompareSignatures() const {
  for (int rank = 0; rank < local_size(); ++rank) {
    if (channel_.Signature(rank, first_) != signature_) {
      const int peer = context_.WorldRank(rank);
      return Status(Code::kMismatch, "rank " + std::to_string(peer) + " runs another operation", peer);
    }
  }
  return Status::Ok();
}

std::vector<int> MissingLocalRanks(const ArenaContext& context) {
  const ArenaChannel channel(context.arena, context.channel);
  std::vector<int> missing = PhaseDone(channel, Phase::kStaged, *context.round).Missing();
  if (missing.empty()) missing = PhaseDone(channel, Phase::kReduced, *context.round).Missing();
  return missing;
}

}  // namespace tfc
