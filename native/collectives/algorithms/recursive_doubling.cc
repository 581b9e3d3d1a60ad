// Recursive doubling. With a number of members that is no power of two, the first members pair up:
// the even one gives its data to the odd one, sits out, and gets the result at the end.
#include <memory>
#include <string>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/transport_algorithms.h"
#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

constexpr size_t kBlock = 256 * 1024;  // scratch is two of these; longer buffers go block by block

// Who takes part in the doubling. Values are indices among the members.
struct Fold {
  int active = 1;  // the largest power of two that is not above the number of members
  int folded = 0;  // this many pairs (2k, 2k + 1) act as one
  int rounds = 0;  // active == 2^rounds

  explicit Fold(int size) {
    for (; 2 * active <= size; active *= 2) ++rounds;
    folded = size - active;
  }
  bool Paired(int index) const { return index < 2 * folded; }
  bool SitsOut(int index) const { return Paired(index) && index % 2 == 0; }
  // Place among the active members, and back.
  int PlaceOf(int index) const { return Paired(index) ? index / 2 : index - folded; }
  int MemberAt(int place) const { return place < folded ? 2 * place + 1 : place + folded; }
};

// One block: `mine` holds the data, `theirs` is room for as much.
class Doubling {
 public:
  Doubling(const TransportContext& context, const Reduction& reduction, uint32_t first_step, uint32_t steps,
           std::byte* mine, std::byte* theirs, size_t size)
      : fold_(context.members.size()),
        index_(context.members.index),
        reduction_(reduction),
        first_step_(first_step),
        mine_(mine),
        theirs_(theirs),
        size_(size),
        requests_(context, "recursive doubling all-reduce", steps) {}

  Status Run() {
    if (fold_.SitsOut(index_)) return SitOut();
    if (fold_.Paired(index_)) {
      TFC_RETURN_IF_ERROR(Receive(index_ - 1, 0, theirs_));
      Combine(/*theirs_first=*/true, /*last=*/fold_.rounds == 0);
    }
    const int place = fold_.PlaceOf(index_);
    for (int round = 0; round < fold_.rounds; ++round) {
      const int partner = place ^ (1 << round);
      TFC_RETURN_IF_ERROR(Exchange(fold_.MemberAt(partner), static_cast<uint32_t>(round) + 1));
      Combine(/*theirs_first=*/partner < place, /*last=*/round + 1 == fold_.rounds);
    }
    return fold_.Paired(index_) ? Send(index_ - 1, LastStep()) : Status::Ok();
  }

 private:
  uint32_t LastStep() const { return static_cast<uint32_t>(fold_.rounds) + 1; }

  Status SitOut() {
    TFC_RETURN_IF_ERROR(Send(index_ + 1, 0));
    return Receive(index_ + 1, LastStep(), mine_);
  }

  // The lower place's data is always the left operand, so that every rank computes the same bits.
  void Combine(bool theirs_first, bool last) {
    const std::byte* inputs[] = {theirs_first ? theirs_ : mine_, theirs_first ? mine_ : theirs_};
    ReduceArrays(last ? reduction_.OnlyFinish() : reduction_.Unscaled(), inputs, 2, mine_,
                 size_ / DtypeSize(reduction_.dtype));
  }

  Status Send(int peer, uint32_t step) {
    Ticket ticket = 0;
    TFC_RETURN_IF_ERROR(requests_.Send(peer, first_step_ + step, {ConstSpan{mine_, size_}}, &ticket));
    return requests_.Wait(ticket, first_step_ + step);
  }

  Status Receive(int peer, uint32_t step, std::byte* target) {
    Ticket ticket = 0;
    TFC_RETURN_IF_ERROR(requests_.Receive(peer, first_step_ + step, {MutableSpan{target, size_}}, &ticket));
    return requests_.Wait(ticket, first_step_ + step);
  }

  Status Exchange(int peer, uint32_t step) {
    Ticket sent = 0, received = 0;
    TFC_RETURN_IF_ERROR(requests_.Receive(peer, first_step_ + step, {MutableSpan{theirs_, size_}}, &received));
    TFC_RETURN_IF_ERROR(requests_.Send(peer, first_step_ + step, {ConstSpan{mine_, size_}}, &sent));
    TFC_RETURN_IF_ERROR(requests_.Wait(received, first_step_ + step));
    return requests_.Wait(sent, first_step_ + step);
  }

  const Fold fold_;
  const int index_;
  const Reduction& reduction_;
  const uint32_t first_step_;
  std::byte* const mine_;
  std::byte* const theirs_;
  const size_t size_;
  Requests requests_;
};

}  // namespace

Status RecursiveDoublingAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                                  const MutableSpans& output) {
  if (context.members.size() == 1) {
    ScaleSpans(reduction, input, output);
    return Status::Ok();
  }
  const SpanIndex<ConstSpan> from(input);
  const SpanIndex<MutableSpan> to(output);
  const size_t total = from.size(), block = std::min(total, kBlock);
  const size_t blocks = total == 0 ? 1 : (total + block - 1) / block;  // an empty buffer still meets everybody
  const auto steps_per_block = static_cast<uint32_t>(Fold(context.members.size()).rounds) + 2;
  const std::unique_ptr<std::byte[]> scratch(new std::byte[2 * block]);
  for (size_t number = 0; number < blocks; ++number) {
    const size_t begin = number * block, end = std::min(begin + block, total);
    const MutableSpans mine{MutableSpan{scratch.get(), end - begin}};
    ScaleSpans(reduction.OnlyPrescale(), from.Slice(begin, end), mine);
    Doubling doubling(context, reduction, static_cast<uint32_t>(number) * steps_per_block,
                      static_cast<uint32_t>(blocks) * steps_per_block, scratch.get(), scratch.get() + block,
                      end - begin);
    TFC_RETURN_IF_ERROR(doubling.Run());
    CopySpans(AsConst(mine), to.Slice(begin, end));
  }
  return Status::Ok();
}

}  // namespace tfc
