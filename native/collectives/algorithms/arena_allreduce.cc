#include <algorithm>
#include <cstring>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/arena_buffers.h"
#include "collectives/algorithms/arena_combine.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/span_cursor.h"
#include "collectives/algorithms/staging_rounds.h"

namespace tfc {
namespace {

// Below this the second flag of two-phase costs more than reading all that the peers have staged. A
// wait costs a change of process where ranks share cores (measured: 3 to 8 ranks on 2 cores).
constexpr size_t kTwoPhaseFrom = 32 * 1024;
constexpr size_t kTwoPhaseFromCrowded = 512 * 1024;

bool UsesTwoPhase(const StagingRounds& rounds, size_t bytes) {
  return rounds.local_size() > 2 && bytes >= (rounds.crowded() ? kTwoPhaseFromCrowded : kTwoPhaseFrom);
}

// One all-reduce, cut into segments, one for each round. A rank works on whatever segment it can and
// only waits when there is nothing else to do: it stages a few segments more while a peer is late.
class AllReduce {
 public:
  AllReduce(StagingRounds* rounds, const Reduction& reduction, const ConstSpans& input, const MutableSpans& output,
            size_t bytes)
      : rounds_(*rounds),
        reduction_(reduction),
        bytes_(bytes),
        segments_((bytes + rounds->segment_size() - 1) / rounds->segment_size()),
        stream_(bytes >= kStreamFrom),
        input_(input),
        own_(input),
        output_(output) {}

  // Every rank stages a segment and combines all staged ones itself: one flag, p reads. Its own part
  // is read where it came from: the staged copy is on its way to the peers' caches.
  Status OneShot() {
    while (finished_ < segments_) {
      if (staged_ > finished_ && (rounds_.IsStaged(finished_) || !CanStage())) {
        TFC_RETURN_IF_ERROR(rounds_.AwaitStaged(finished_));
        CombineStaged(rounds_, reduction_, Lot{finished_, 0, SizeOf(finished_)}, &own_, &output_, stream_);
        rounds_.Close(finished_++);
      } else {
        TFC_RETURN_IF_ERROR(StageAll());
      }
    }
    return Status::Ok();
  }

  // Every rank stages what the others combine, combines its own slice of all into its slot (no other
  // rank reads that part), and collects the slices: two flags, less to read.
  Status TwoPhase() {
    while (finished_ < segments_) {
      if (staged_ > combined_ && (rounds_.IsStaged(combined_) || (!CanStage() && combined_ == finished_))) {
        TFC_RETURN_IF_ERROR(CombineSlice());
      } else if (combined_ > finished_ && (rounds_.IsReduced(finished_) || !CanStage())) {
        TFC_RETURN_IF_ERROR(CollectSlices());
      } else {
        TFC_RETURN_IF_ERROR(StageForOthers());
      }
    }
    return Status::Ok();
  }

 private:
  size_t SizeOf(uint64_t segment) const {
    return std::min(bytes_ - segment * rounds_.segment_size(), rounds_.segment_size());
  }

  // Without waiting.
  bool CanStage() const {
    return staged_ < segments_ && staged_ - finished_ < StagingRounds::kRunAhead && rounds_.CanOpen(staged_);
  }

  Status StageAll() {
    TFC_RETURN_IF_ERROR(rounds_.Open(staged_));
    input_.CopyTo(rounds_.slot(staged_), SizeOf(staged_));
    rounds_.Publish(staged_++);
    return Status::Ok();
  }

  Status StageForOthers() {
    TFC_RETURN_IF_ERROR(rounds_.Open(staged_));
    const Lot slice = SliceOf(staged_, rounds_.local_rank());
    const size_t end = slice.begin + slice.size;
    input_.CopyTo(rounds_.slot(staged_), slice.begin);
    input_.Skip(slice.size);
    input_.CopyTo(rounds_.slot(staged_) + end, SizeOf(staged_) - end);
    rounds_.Publish(staged_++);
    return Status::Ok();
  }

  Status CombineSlice() {
    TFC_RETURN_IF_ERROR(rounds_.AwaitStaged(combined_));
    const Lot slice = SliceOf(combined_, rounds_.local_rank());
    const MutableSpan result = {rounds_.slot(combined_) + slice.begin, slice.size};
    MutableCursor to(&result);
    own_.Skip(slice.begin);
    CombineStaged(rounds_, reduction_, slice, &own_, &to, false);
    own_.Skip(SizeOf(combined_) - slice.begin - slice.size);
    rounds_.PublishReduced(combined_++);
    return Status::Ok();
  }

  Status CollectSlices() {
    TFC_RETURN_IF_ERROR(rounds_.AwaitReduced(finished_));
    for (int rank = 0; rank < rounds_.local_size(); ++rank) {
      const Lot slice = SliceOf(finished_, rank);
      CopyOut(rounds_.peer_slot(rank, finished_) + slice.begin, &output_, slice.size, stream_);
    }
    rounds_.Close(finished_++);
    return Status::Ok();
  }

  // The part of a segment that a local rank combines for all: whole cache lines.
  Lot SliceOf(uint64_t segment, int local_rank) const {
    const size_t begin = SliceBegin(SizeOf(segment), local_rank);
    return Lot{segment, begin, SliceBegin(SizeOf(segment), local_rank + 1) - begin};
  }
  size_t SliceBegin(size_t size, int local_rank) const {
    if (local_rank == rounds_.local_size()) return size;
    return size * static_cast<size_t>(local_rank) / static_cast<size_t>(rounds_.local_size()) / kLineSize * kLineSize;
  }

  StagingRounds& rounds_;
  const Reduction& reduction_;
  const size_t bytes_;
  const uint64_t segments_;
  const bool stream_;
  // Segments staged, combined (two-phase only) and finished, and where the next one of each lies.
  uint64_t staged_ = 0;
  uint64_t combined_ = 0;
  uint64_t finished_ = 0;
  ConstCursor input_;
  ConstCursor own_;
  MutableCursor output_;
};

bool FitsOneShot(const StagingRounds& rounds, size_t bytes) {
  return bytes <= rounds.segment_size() && !UsesTwoPhase(rounds, bytes);
}

// One-shot of one piece of memory that fits a segment: no cursors.
Status OneSegment(StagingRounds* rounds, const Reduction& reduction, const ConstSpan& input, const MutableSpan& output,
                  size_t count) {
  TFC_RETURN_IF_ERROR(rounds->Open(0));
  std::memcpy(rounds->slot(0), input.data, input.size);
  TFC_RETURN_IF_ERROR(rounds->PublishAndAwait());
  CombineSlots(*rounds, reduction, input.data, output.data, count);
  rounds->Close(0);
  return Status::Ok();
}

}  // namespace

Status ArenaAllReduce(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                      const MutableSpans& output) {
  const size_t bytes = TotalSize(input);
  TFC_RETURN_IF_ERROR(CheckSize("the output", TotalSize(output), bytes));
  TFC_RETURN_IF_ERROR(CheckElements(input, DtypeSize(reduction.dtype)));
  TFC_RETURN_IF_ERROR(CheckElements(output, DtypeSize(reduction.dtype)));
  StagingRounds rounds(context, bytes);
  if (bytes == 0) return rounds.Pass();
  if (rounds.local_size() == 1) {
    ScaleSpans(reduction, input, output);
    return Status::Ok();
  }
  if (input.size() == 1 && output.size() == 1 && FitsOneShot(rounds, bytes))
    return OneSegment(&rounds, reduction, input[0], output[0], bytes / DtypeSize(reduction.dtype));
  AllReduce all_reduce(&rounds, reduction, input, output, bytes);
  return UsesTwoPhase(rounds, bytes) ? all_reduce.TwoPhase() : all_reduce.OneShot();
}

Status ArenaAllReduceChecked(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                             const MutableSpans& output, size_t count) {
  StagingRounds rounds(context, input[0].size);
  if (rounds.local_size() == 1 || !FitsOneShot(rounds, input[0].size))
    return ArenaAllReduce(context, reduction, input, output);
  return OneSegment(&rounds, reduction, input[0], output[0], count);
}

}  // namespace tfc
