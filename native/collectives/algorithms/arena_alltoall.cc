#include <algorithm>
#include <numeric>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/arena_buffers.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/span_cursor.h"
#include "collectives/algorithms/staging_rounds.h"

namespace tfc {
namespace {

// Each slot is divided into equal lots, one for each receiver.
class Exchange {
 public:
  Exchange(StagingRounds* rounds, const std::vector<size_t>& sizes, const ConstSpans& input, const MutableSpans& output)
      : rounds_(*rounds),
        ranks_(static_cast<size_t>(rounds->local_size())),
        own_(static_cast<size_t>(rounds->local_rank())),
        sizes_(sizes),
        stream_(TotalSize(output) >= kStreamFrom),
        lot_size_(rounds->segment_size() / ranks_ / kLineSize * kLineSize) {
    ConstCursor from(input);
    MutableCursor to(output);
    for (size_t peer = 0; peer < ranks_; ++peer) {
      inputs_.push_back(from);
      outputs_.push_back(to);
      from.Skip(size(own_, peer));
      to.Skip(size(peer, own_));
    }
  }

  Status Run() {
    uint64_t round = 0;
    for (size_t done = 0; done < Longest(); done += lot_size_, ++round) {
      TFC_RETURN_IF_ERROR(rounds_.Open(round));
      for (size_t peer = 0; peer < ranks_; ++peer) {
        if (peer != own_) inputs_[peer].CopyTo(rounds_.slot(round) + peer * lot_size_, Now(own_, peer, done));
      }
      rounds_.Publish(round);
      TFC_RETURN_IF_ERROR(rounds_.AwaitStaged(round));
      for (size_t peer = 0; peer < ranks_; ++peer) {
        if (peer == own_) continue;
        const std::byte* lot = rounds_.peer_slot(static_cast<int>(peer), round) + own_ * lot_size_;
        CopyOut(lot, &outputs_[peer], Now(peer, own_, done), stream_);
      }
      rounds_.Close(round);
    }
    return Status::Ok();
  }

 private:
  size_t size(size_t from, size_t to) const { return sizes_[from * ranks_ + to]; }

  // Bytes between this pair in the round that begins at `done`.
  size_t Now(size_t from, size_t to, size_t done) const {
    return std::min(size(from, to) - std::min(size(from, to), done), lot_size_);
  }

  // All ranks run as many rounds as the longest part takes, and one if there are only parts that
  // stay where they are.
  size_t Longest() const {
    size_t longest = 1;
    for (size_t from = 0; from < ranks_; ++from) {
      for (size_t to = 0; to < ranks_; ++to) {
        if (from != to) longest = std::max(longest, size(from, to));
      }
    }
    return longest;
  }

  StagingRounds& rounds_;
  const size_t ranks_;
  const size_t own_;
  const std::vector<size_t>& sizes_;
  const bool stream_;
  const size_t lot_size_;
  std::vector<ConstCursor> inputs_;
  std::vector<MutableCursor> outputs_;
};

Status CheckSizes(const std::vector<size_t>& sizes, size_t ranks, size_t own, size_t input, size_t output) {
  if (sizes.size() != ranks * ranks) return Status(Code::kInvalidArgument, "sizes must have one entry for each pair");
  size_t sent = 0, received = 0;
  for (size_t peer = 0; peer < ranks; ++peer) {
    sent += sizes[own * ranks + peer];
    received += sizes[peer * ranks + own];
  }
  TFC_RETURN_IF_ERROR(CheckSize("the input", input, sent));
  return CheckSize("the output", output, received);
}

void CopyOwnPart(const std::vector<size_t>& sizes, size_t ranks, size_t own, const ConstSpans& input,
                 const MutableSpans& output) {
  size_t from = 0, to = 0;
  for (size_t peer = 0; peer < own; ++peer) {
    from += sizes[own * ranks + peer];
    to += sizes[peer * ranks + own];
  }
  const size_t size = sizes[own * ranks + own];
  CopySpans(Slice(input, from, from + size), Slice(output, to, to + size));
}

}  // namespace

Status ArenaAllToAll(const ArenaContext& context, const std::vector<size_t>& sizes, const ConstSpans& input,
                     const MutableSpans& output) {
  StagingRounds rounds(context);
  const size_t ranks = static_cast<size_t>(rounds.local_size());
  const size_t own = static_cast<size_t>(rounds.local_rank());
  TFC_RETURN_IF_ERROR(CheckSizes(sizes, ranks, own, TotalSize(input), TotalSize(output)));
  if (std::accumulate(sizes.begin(), sizes.end(), size_t{0}) == 0) return rounds.Pass();
  TFC_RETURN_IF_ERROR(Exchange(&rounds, sizes, input, output).Run());
  CopyOwnPart(sizes, ranks, own, input, output);
  return Status::Ok();
}

}  // namespace tfc
