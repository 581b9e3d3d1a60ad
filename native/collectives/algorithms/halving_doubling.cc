// Reduce-scatter by halving, all-gather by doubling. What Rabenseifner's algorithm does for powers of two
// (Thakur, Rabenseifner and Gropp 2005) works for any number of members on a circulant graph (Träff 2024).
//
// Member r counts the p shares from its own: its i-th share is share (r + i) mod p. Let s be how many of them it is
// still responsible for, p at first. In a step to t = ceil(s / 2) it gives shares [t, s) to the member t places to
// its right, whose shares [0, s - t) they are, and gets as much from t places to its left. After ceil(lg p) steps
// its own share is complete. The same steps backwards collect everybody's.
#include <algorithm>
#include <memory>
#include <vector>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

constexpr size_t kBlock = 4 * 1024 * 1024;  // scratch is half of it; longer buffers go block by block

// p, ceil(p / 2), ..., 1: how many shares a member answers for before each step and after the last.
std::vector<int> SharesBeforeSteps(int size) {
  std::vector<int> shares{size};
  while (shares.back() > 1) shares.push_back((shares.back() + 1) / 2);
  return shares;
}

// One block, which lies in `data` already prescaled.
class HalvingDoubling {
 public:
  HalvingDoubling(const TransportContext& context, const Reduction& reduction, const std::vector<int>& shares,
                  uint32_t first_step, uint32_t steps, const SpanIndex<MutableSpan>& data, size_t begin, size_t end)
      : members_(context.members),
        reduction_(reduction),
        shares_(shares),
        first_step_(first_step),
        data_(data),
        begin_(begin),
        offsets_(EvenOffsets(end - begin, DtypeSize(reduction.dtype), context.members.size())),
        requests_(context, "halving and doubling all-reduce", steps) {}

  Status Run(std::byte* scratch) {
    const size_t rounds = shares_.size() - 1;
    auto step = first_step_;
    for (size_t round = 0; round < rounds; ++round) TFC_RETURN_IF_ERROR(Halve(round, step++, scratch));
    for (size_t round = rounds; round-- > 0;) TFC_RETURN_IF_ERROR(Double(round, step++));
    return Status::Ok();
  }

 private:
  Status Halve(size_t round, uint32_t step, std::byte* scratch) {
    const int held = shares_[round], kept = shares_[round + 1];
    const MutableSpans own = Shares(0, held - kept);
    TFC_RETURN_IF_ERROR(
        Exchange(step, Member(kept), Shares(kept, held), Member(-kept), {MutableSpan{scratch, TotalSize(own)}}));
    CombineSpans(kept == 1 ? reduction_.OnlyFinish() : reduction_.Unscaled(), scratch, AsConst(own), own);
    return Status::Ok();
  }

  Status Double(size_t round, uint32_t step) {
    const int held = shares_[round], kept = shares_[round + 1];
    return Exchange(step, Member(-kept), Shares(0, held - kept), Member(kept), Shares(kept, held));
  }

  Status Exchange(uint32_t step, int to, const MutableSpans& sent, int from, const MutableSpans& room) {
    Ticket sending = 0, receiving = 0;
    TFC_RETURN_IF_ERROR(requests_.Receive(from, step, room, &receiving));
    TFC_RETURN_IF_ERROR(requests_.Send(to, step, AsConst(sent), &sending));
    TFC_RETURN_IF_ERROR(requests_.Wait(receiving, step));
    return requests_.Wait(sending, step);
  }

  int Member(int distance) const {
    const int size = members_.size();
    return (members_.index + distance + size) % size;
  }

  // Where this member's shares [first, end) lie: they may go over the end of the block and on at its beginning.
  MutableSpans Shares(int first, int end) const {
    const int size = members_.size();
    const int from = members_.index + first, to = members_.index + end;
    if (from >= size) return Slice(from - size, to - size);
    MutableSpans spans = Slice(from, std::min(to, size));
    if (to > size) {
      const MutableSpans rest = Slice(0, to - size);
      spans.insert(spans.end(), rest.begin(), rest.end());
    }
    return spans;
  }

  MutableSpans Slice(int from, int to) const {
    return data_.Slice(begin_ + offsets_[static_cast<size_t>(from)], begin_ + offsets_[static_cast<size_t>(to)]);
  }

  const Members& members_;
  const Reduction& reduction_;
  const std::vector<int>& shares_;
  const uint32_t first_step_;
  const SpanIndex<MutableSpan>& data_;
  const size_t begin_;
  const std::vector<size_t> offsets_;
  Requests requests_;
};

// Half of a block of `bytes` bytes: what the largest message holds at most, shares being uneven by an element.
size_t LargestMessage(size_t bytes, size_t element, int size) {
  const auto shares = static_cast<size_t>(size / 2);
  return shares * (bytes / static_cast<size_t>(size) + element);
}

}  // namespace

Status HalvingDoublingAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                                const MutableSpans& output) {
  const int size = context.members.size();
  if (size == 1) {
    ScaleSpans(reduction, input, output);
    return Status::Ok();
  }
  const SpanIndex<ConstSpan> from(input);
  const SpanIndex<MutableSpan> to(output);
  const size_t total = from.size();
  const size_t blocks = total == 0 ? 1 : (total + kBlock - 1) / kBlock;  // an empty buffer still meets everybody
  const std::vector<int> shares = SharesBeforeSteps(size);
  const auto steps_per_block = static_cast<uint32_t>(2 * (shares.size() - 1));
  const size_t room = LargestMessage(std::min(total, kBlock), DtypeSize(reduction.dtype), size);
  const std::unique_ptr<std::byte[]> scratch(new std::byte[room]);
  for (size_t number = 0; number < blocks; ++number) {
    const size_t begin = number * kBlock, end = std::min(begin + kBlock, total);
    ScaleSpans(reduction.OnlyPrescale(), from.Slice(begin, end), to.Slice(begin, end));
    HalvingDoubling block(context, reduction, shares, static_cast<uint32_t>(number) * steps_per_block,
                          static_cast<uint32_t>(blocks) * steps_per_block, to, begin, end);
    TFC_RETURN_IF_ERROR(block.Run(scratch.get()));
  }
  return Status::Ok();
}

}  // namespace tfc
