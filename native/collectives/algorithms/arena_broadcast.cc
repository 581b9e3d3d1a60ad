#include <algorithm>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/arena_buffers.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/span_cursor.h"
#include "collectives/algorithms/staging_rounds.h"

namespace tfc {
namespace {

// After the first round the root runs ahead of the others by as many segments as there are slots.
Status Send(StagingRounds* rounds, ConstCursor input, size_t bytes) {
  uint64_t round = 0;
  for (size_t done = 0; done < bytes; done += rounds->segment_size(), ++round) {
    TFC_RETURN_IF_ERROR(rounds->Open(round));
    input.CopyTo(rounds->slot(round), std::min(bytes - done, rounds->segment_size()));
    rounds->Publish(round);
    if (round == 0) TFC_RETURN_IF_ERROR(rounds->AwaitStaged(round));
    rounds->Close(round);
  }
  return Status::Ok();
}

Status Receive(StagingRounds* rounds, int root, MutableCursor output, size_t bytes) {
  uint64_t round = 0;
  for (size_t done = 0; done < bytes; done += rounds->segment_size(), ++round) {
    TFC_RETURN_IF_ERROR(rounds->Open(round));
    rounds->Publish(round);
    TFC_RETURN_IF_ERROR(rounds->AwaitStaged(round, root));
    CopyOut(rounds->peer_slot(root, round), &output, std::min(bytes - done, rounds->segment_size()),
            bytes >= kStreamFrom);
    rounds->Close(round);
  }
  return Status::Ok();
}

}  // namespace

Status ArenaBroadcast(const ArenaContext& context, int root, const ConstSpans& input, const MutableSpans& output) {
  StagingRounds rounds(context);
  if (root < 0 || root >= rounds.local_size()) {
    return Status(Code::kInvalidArgument, "there is no local rank " + std::to_string(root));
  }
  const size_t bytes = TotalSize(output);
  if (root != rounds.local_rank()) {
    return bytes == 0 ? rounds.Pass() : Receive(&rounds, root, MutableCursor(output), bytes);
  }
  TFC_RETURN_IF_ERROR(CheckSize("the input", TotalSize(input), bytes));
  if (bytes == 0) return rounds.Pass();
  TFC_RETURN_IF_ERROR(Send(&rounds, ConstCursor(input), bytes));
  CopySpans(input, output);
  return Status::Ok();
}

}  // namespace tfc
