#include <algorithm>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/arena_buffers.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/span_cursor.h"
#include "collectives/algorithms/staging_rounds.h"

namespace tfc {
namespace {

using Parts = std::vector<Part<MutableCursor>>;

Status Exchange(StagingRounds* rounds, ConstCursor input, Parts parts, bool stream) {
  const size_t own = static_cast<size_t>(rounds->local_rank());
  for (uint64_t round = 0; AnyLeft(parts); ++round) {
    TFC_RETURN_IF_ERROR(rounds->Open(round));
    input.CopyTo(rounds->slot(round), std::min(parts[own].left, rounds->segment_size()));
    rounds->Publish(round);
    TFC_RETURN_IF_ERROR(rounds->AwaitStaged(round));
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t size = std::min(parts[i].left, rounds->segment_size());
      if (i != own) CopyOut(rounds->peer_slot(static_cast<int>(i), round), &parts[i].cursor, size, stream);
      parts[i].left -= size;
    }
    rounds->Close(round);
  }
  return Status::Ok();
}

}  // namespace

Status ArenaAllGather(const ArenaContext& context, const ConstSpans& input, const std::vector<size_t>& offsets,
                      const MutableSpans& output) {
  StagingRounds rounds(context);
  const size_t own = static_cast<size_t>(rounds.local_rank());
  TFC_RETURN_IF_ERROR(CheckOffsets(offsets, rounds.local_size()));
  TFC_RETURN_IF_ERROR(CheckSize("the input", TotalSize(input), offsets[own + 1] - offsets[own]));
  TFC_RETURN_IF_ERROR(CheckSize("the output", TotalSize(output), offsets.back()));
  if (offsets.back() == 0) return rounds.Pass();
  TFC_RETURN_IF_ERROR(
      Exchange(&rounds, ConstCursor(input), PartsOf<MutableCursor>(output, offsets), offsets.back() >= kStreamFrom));
  CopySpans(input, Slice(output, offsets[own], offsets[own + 1]));
  return Status::Ok();
}

}  // namespace tfc
