#include <algorithm>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/arena_buffers.h"
#include "collectives/algorithms/arena_combine.h"
#include "collectives/algorithms/span_cursor.h"
#include "collectives/algorithms/staging_rounds.h"

namespace tfc {
namespace {

using Parts = std::vector<Part<ConstCursor>>;

// Each slot is divided into equal lots, one for each rank's part.
class ReduceScatter {
 public:
  ReduceScatter(StagingRounds* rounds, const Reduction& reduction, Parts parts, const MutableSpans& output)
      : rounds_(*rounds),
        reduction_(reduction),
        parts_(std::move(parts)),
        output_(output),
        stream_(parts_[static_cast<size_t>(rounds->local_rank())].left >= kStreamFrom),
        lot_size_(rounds->segment_size() / parts_.size() / kLineSize * kLineSize) {}

  Status Run() {
    for (uint64_t round = 0; AnyLeft(parts_); ++round) {
      TFC_RETURN_IF_ERROR(rounds_.Open(round));
      Stage(round);
      rounds_.Publish(round);
      TFC_RETURN_IF_ERROR(rounds_.AwaitStaged(round));
      Combine(round);
      rounds_.Close(round);
    }
    return Status::Ok();
  }

 private:
  Part<ConstCursor>& own() { return parts_[static_cast<size_t>(rounds_.local_rank())]; }

  void Stage(uint64_t round) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (&parts_[i] == &own()) continue;
      const size_t size = std::min(parts_[i].left, lot_size_);
      parts_[i].cursor.CopyTo(rounds_.slot(round) + i * lot_size_, size);
      parts_[i].left -= size;
    }
  }

  void Combine(uint64_t round) {
    const Lot lot{round, static_cast<size_t>(rounds_.local_rank()) * lot_size_, std::min(own().left, lot_size_)};
    CombineStaged(rounds_, reduction_, lot, &own().cursor, &output_, stream_);
    own().left -= lot.size;
  }

  StagingRounds& rounds_;
  const Reduction& reduction_;
  Parts parts_;
  MutableCursor output_;
  const bool stream_;
  const size_t lot_size_;
};

}  // namespace

Status ArenaReduceScatter(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                          const std::vector<size_t>& offsets, const MutableSpans& output) {
  StagingRounds rounds(context);
  const size_t element = reduction.input_size(), result = reduction.output_size();
  const size_t own = static_cast<size_t>(rounds.local_rank());
  TFC_RETURN_IF_ERROR(CheckOffsets(offsets, rounds.local_size()));
  TFC_RETURN_IF_ERROR(CheckSize("the input", TotalSize(input), offsets.back()));
  TFC_RETURN_IF_ERROR(CheckSize("the output", TotalSize(output), (offsets[own + 1] - offsets[own]) / element * result));
  TFC_RETURN_IF_ERROR(CheckElements(input, element));
  TFC_RETURN_IF_ERROR(CheckElements(output, result));
  if (offsets.back() == 0) return rounds.Pass();
  return ReduceScatter(&rounds, reduction, PartsOf<ConstCursor>(input, offsets), output).Run();
}

}  // namespace tfc
