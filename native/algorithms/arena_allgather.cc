#include <algorithm>

#include "algorithms/arena_algorithms.h"
#include "algorithms/arena_buffers.h"
#include "algorithms/pieces.h"
#include "algorithms/span_cursor.h"
#include "algorithms/staging_rounds.h"

namespace tfc {
namespace {

// The part of one rank: where its next bytes go, and how many are left.
struct Part {
  MutableCursor output;
  size_t left;
};

std::vector<Part> PartsOf(const MutableSpans& output, const std::vector<size_t>& offsets) {
  std::vector<Part> parts;
  MutableCursor cursor(output);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    parts.push_back(Part{cursor, offsets[i + 1] - offsets[i]});
    cursor.Skip(offsets[i + 1] - offsets[i]);
  }
  return parts;
}

Status Exchange(StagingRounds* rounds, ConstCursor input, std::vector<Part> parts, bool stream) {
  const size_t own = static_cast<size_t>(rounds->local_rank());
  const auto any_left = [&parts] {
    return std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.left > 0; });
  };
  for (uint64_t round = 0; any_left(); ++round) {
    TFC_RETURN_IF_ERROR(rounds->Open(round));
    input.CopyTo(rounds->slot(round), std::min(parts[own].left, rounds->segment_size()));
    rounds->Publish(round);
    TFC_RETURN_IF_ERROR(rounds->AwaitStaged(round));
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t size = std::min(parts[i].left, rounds->segment_size());
      if (i != own) CopyOut(rounds->peer_slot(static_cast<int>(i), round), &parts[i].output, size, stream);
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
  TFC_RETURN_IF_ERROR(Exchange(&rounds, ConstCursor(input), PartsOf(output, offsets), offsets.back() >= kStreamFrom));
  CopySpans(input, Slice(output, offsets[own], offsets[own + 1]));
  return Status::Ok();
}

}  // namespace tfc
