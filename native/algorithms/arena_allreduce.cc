#include <algorithm>

#include "algorithms/arena_algorithms.h"
#include "algorithms/arena_buffers.h"
#include "algorithms/pieces.h"
#include "algorithms/span_cursor.h"
#include "algorithms/staging_rounds.h"

namespace tfc {
namespace {

// Below this the second flag of two-phase costs more than reading all that the peers have staged.
constexpr size_t kTwoPhaseFrom = 16 * 1024;

struct AllReduceTask {
  const Reduction& reduction;
  size_t element;  // bytes
  size_t bytes;
  ConstCursor input;
  MutableCursor output;

  bool stream() const { return bytes >= kStreamFrom; }
};

// Every rank stages a segment and combines all staged ones itself: one flag, p reads.
Status OneShot(StagingRounds* rounds, AllReduceTask task) {
  InputList inputs(rounds->local_size());
  for (size_t done = 0; done < task.bytes;) {
    const size_t size = std::min(task.bytes - done, rounds->segment_size());
    TFC_RETURN_IF_ERROR(rounds->Open());
    task.input.CopyTo(rounds->slot(), size);
    rounds->Publish();
    TFC_RETURN_IF_ERROR(rounds->AwaitStaged());
    task.output.Visit(size, [&](std::byte* data, size_t offset, size_t piece) {
      for (int rank = 0; rank < rounds->local_size(); ++rank) inputs[rank] = rounds->peer_slot(rank) + offset;
      ReduceArrays(task.reduction, inputs.data(), static_cast<size_t>(rounds->local_size()), data, piece / task.element,
                   task.stream());
    });
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
    InputList inputs(rounds_.local_size());
    own_.Visit(end_ - begin_, [&](const std::byte* data, size_t offset, size_t piece) {
      for (int rank = 0; rank < rounds_.local_size(); ++rank) inputs[rank] = rounds_.peer_slot(rank) + begin_ + offset;
      inputs[rounds_.local_rank()] = data;
      ReduceArrays(task_.reduction, inputs.data(), static_cast<size_t>(rounds_.local_size()),
                   rounds_.slot() + begin_ + offset, piece / task_.element);
    });
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
  const size_t element = DtypeSize(reduction.dtype);
  const AllReduceTask task{reduction, element, TotalSize(input), ConstCursor(input), MutableCursor(output)};
  TFC_RETURN_IF_ERROR(CheckSize("the output", TotalSize(output), task.bytes));
  TFC_RETURN_IF_ERROR(CheckElements(input, element));
  TFC_RETURN_IF_ERROR(CheckElements(output, element));
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
