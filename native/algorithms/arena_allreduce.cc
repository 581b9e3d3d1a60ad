#include <algorithm>

#include "algorithms/arena_algorithms.h"
#include "algorithms/arena_buffers.h"
#include "algorithms/arena_combine.h"
#include "algorithms/pieces.h"
#include "algorithms/span_cursor.h"
#include "algorithms/staging_rounds.h"

namespace tfc {
namespace {

// Below this the second flag of two-phase costs more than reading all that the peers have staged.
constexpr size_t kTwoPhaseFrom = 16 * 1024;

struct AllReduceTask {
  const Reduction& reduction;
  size_t bytes;
  ConstCursor input;
  MutableCursor output;

  bool stream() const { return bytes >= kStreamFrom; }
};

// Every rank stages a segment and combines all staged ones itself: one flag, p reads. Its own part is
// read where it came from: the staged copy is on its way to the peers' caches.
Status OneShot(StagingRounds* rounds, AllReduceTask task) {
  for (size_t done = 0; done < task.bytes;) {
    const size_t size = std::min(task.bytes - done, rounds->segment_size());
    TFC_RETURN_IF_ERROR(rounds->Open());
    ConstCursor own = task.input;
    task.input.CopyTo(rounds->slot(), size);
    rounds->Publish();
    TFC_RETURN_IF_ERROR(rounds->AwaitStaged());
    CombineStaged(*rounds, task.reduction, Lot{0, size}, &own, &task.output, task.stream());
    rounds->Close();
    done += size;
  }
  return Status::Ok();
}

// The part of a segment that a local rank combines for all: whole cache lines.
size_t SliceBegin(size_t size, int local_rank, int local_size) {
  if (local_rank == local_size) return size;
  return size * static_cast<size_t>(local_rank) / static_cast<size_t>(local_size) / kLineSize * kLineSize;
}

// Every rank stages what the others combine, combines its own slice of all into its slot (nobody
// else reads that part), and collects the slices: two flags, less to read.
class TwoPhaseRound {
 public:
  TwoPhaseRound(StagingRounds* rounds, AllReduceTask* task, size_t size)
      : rounds_(*rounds),
        task_(*task),
        size_(size),
        begin_(SliceBegin(size, rounds->local_rank(), rounds->local_size())),
        end_(SliceBegin(size, rounds->local_rank() + 1, rounds->local_size())),
        own_(task->input) {}

  Status Run() {
    TFC_RETURN_IF_ERROR(rounds_.Open());
    Stage();
    rounds_.Publish();
    TFC_RETURN_IF_ERROR(rounds_.AwaitStaged());
    CombineSlice();
    rounds_.PublishReduced();
    TFC_RETURN_IF_ERROR(rounds_.AwaitReduced());
    Collect();
    rounds_.Close();
    return Status::Ok();
  }

 private:
  void Stage() {
    task_.input.CopyTo(rounds_.slot(), begin_);
    own_ = task_.input;
    task_.input.Skip(end_ - begin_);
    task_.input.CopyTo(rounds_.slot() + end_, size_ - end_);
  }

  void CombineSlice() {
    const MutableSpan slice = {rounds_.slot() + begin_, end_ - begin_};
    MutableCursor result(&slice);
    CombineStaged(rounds_, task_.reduction, Lot{begin_, end_ - begin_}, &own_, &result, false);
  }

  void Collect() {
    for (int rank = 0; rank < rounds_.local_size(); ++rank) {
      const size_t begin = SliceBegin(size_, rank, rounds_.local_size());
      const size_t end = SliceBegin(size_, rank + 1, rounds_.local_size());
      CopyOut(rounds_.peer_slot(rank) + begin, &task_.output, end - begin, task_.stream());
    }
  }

  StagingRounds& rounds_;
  AllReduceTask& task_;
  const size_t size_;
  const size_t begin_;
  const size_t end_;
  ConstCursor own_;
};

Status TwoPhase(StagingRounds* rounds, AllReduceTask task) {
  for (size_t done = 0; done < task.bytes;) {
    const size_t size = std::min(task.bytes - done, rounds->segment_size());
    TFC_RETURN_IF_ERROR(TwoPhaseRound(rounds, &task, size).Run());
    done += size;
  }
  return Status::Ok();
}

}  // namespace

Status ArenaAllReduce(const ArenaContext& context, const Reduction& reduction, const ConstSpans& input,
                      const MutableSpans& output) {
  const AllReduceTask task{reduction, TotalSize(input), ConstCursor(input), MutableCursor(output)};
  TFC_RETURN_IF_ERROR(CheckSize("the output", TotalSize(output), task.bytes));
  TFC_RETURN_IF_ERROR(CheckElements(input, DtypeSize(reduction.dtype)));
  TFC_RETURN_IF_ERROR(CheckElements(output, DtypeSize(reduction.dtype)));
  StagingRounds rounds(context);
  if (task.bytes == 0) return rounds.Pass();
  if (rounds.local_size() == 1) {
    ScaleSpans(reduction, input, output);
    return Status::Ok();
  }
  if (rounds.local_size() == 2 || task.bytes < kTwoPhaseFrom) return OneShot(&rounds, task);
  return TwoPhase(&rounds, task);
}

}  // namespace tfc
