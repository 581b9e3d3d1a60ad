// Reduction of 16-bit floats without partial results: every member sends each share, as it is, to the member that
// adds it up. All contributions to an element meet there, are combined in float32 in the order of the members, and
// are rounded once.
//
// Shares travel in segments. Round k exchanges segment k of every share; while it is added up, the next round's are
// on the wire. An all-reduce sends the results of a round to all members, from where they lie.
#include <algorithm>
#include <memory>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/transport_algorithms.h"
#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

constexpr size_t kLargestSegment = 128 * 1024;  // elements
constexpr size_t kSmallestSegment = 8 * 1024;
constexpr size_t kRoom = 512 * 1024;  // elements from all members in a round, unless the smallest segments need more
constexpr size_t kRounds = 4;         // at least, where shares are long enough: something to overlap

size_t DivideUp(size_t value, size_t by) { return (value + by - 1) / by; }

// Elements; `peers` is how many members there are besides this one.
size_t SegmentOf(size_t largest_share, size_t peers) {
  if (largest_share <= kSmallestSegment) return std::max<size_t>(largest_share, 1);
  const size_t largest = std::clamp(kRoom / peers, kSmallestSegment, kLargestSegment);
  const size_t rounds = std::max(kRounds, DivideUp(largest_share, largest));
  return std::clamp(DivideUp(largest_share, rounds), kSmallestSegment, largest);
}

class Direct {
 public:
  // `offsets`: where the members' shares lie, in elements. `to_all`: all members get all results.
  Direct(const TransportContext& context, const char* phase, const Reduction& reduction, const ConstSpans& input,
         const std::vector<size_t>& offsets, const MutableSpans& output, bool to_all)
      : size_(context.members.size()),
        index_(context.members.index),
        reduction_(reduction),
        in_(reduction.input_size()),
        out_(reduction.output_size()),
        input_(input),
        offsets_(offsets),
        output_(output),
        to_all_(to_all),
        segment_(SegmentOf(LargestShare(), static_cast<size_t>(size_ - 1))),
        rounds_(DivideUp(LargestShare(), segment_)),
        room_(new std::byte[2 * RoomOfARound()]),
        requests_(context, phase, 2 * rounds_),
        sends_(requests_),
        receives_(requests_),
        results_(requests_),
        sent_results_(requests_) {}

  Status Run() {
    const auto peers = static_cast<uint64_t>(size_ - 1);
    for (uint64_t round = 0; round <= rounds_; ++round) {
      if (round < rounds_) TFC_RETURN_IF_ERROR(Gather(round));
      if (round == 0) continue;
      const uint64_t ready = round - 1;
      if (to_all_) {
        // The results may arrive where this member's own values lie, which must have left.
        TFC_RETURN_IF_ERROR(sends_.WaitBelow(round * peers));
        TFC_RETURN_IF_ERROR(ExpectResults(ready));
      }
      TFC_RETURN_IF_ERROR(receives_.WaitBelow(round * peers));
      Combine(ready);
      if (to_all_) TFC_RETURN_IF_ERROR(SendResults(ready));
    }
    TFC_RETURN_IF_ERROR(sends_.WaitAll());
    TFC_RETURN_IF_ERROR(results_.WaitAll());
    return sent_results_.WaitAll();
  }

 private:
  // Elements of one share in one round.
  struct Part {
    size_t begin;
    size_t end;
    size_t count() const { return end - begin; }
  };

  Part PartOf(int member, uint64_t round) const {
    const auto share = static_cast<size_t>(member);
    const size_t begin = std::min(offsets_[share] + static_cast<size_t>(round) * segment_, offsets_[share + 1]);
    return {begin, std::min(begin + segment_, offsets_[share + 1])};
  }

  size_t LargestShare() const {
    size_t largest = 0;
    for (size_t i = 0; i + 1 < offsets_.size(); ++i) largest = std::max(largest, offsets_[i + 1] - offsets_[i]);
    return largest;
  }

  ConstSpans Input(const Part& part) const { return input_.Slice(part.begin * in_, part.end * in_); }
  MutableSpans Output(const Part& part) const {
    const size_t skipped = to_all_ ? 0 : offsets_[static_cast<size_t>(index_)];
    return output_.Slice((part.begin - skipped) * out_, (part.end - skipped) * out_);
  }

  // One place for each peer's part of this member's share, for two rounds in turns. A member's own place is not used.
  size_t RoomOfARound() const { return static_cast<size_t>(size_) * segment_ * in_; }
  std::byte* Place(int member, uint64_t round) const {
    return room_.get() + (round % 2) * RoomOfARound() + static_cast<size_t>(member) * segment_ * in_;
  }

  // In step s every member sends to the one s places on: no member receives from all at once.
  template <typename Visit>
  Status ForEachPeer(const Visit& visit) const {
    for (int step = 1; step < size_; ++step)
      TFC_RETURN_IF_ERROR(visit((index_ + step) % size_, (index_ - step + size_) % size_));
    return Status::Ok();
  }

  Status Gather(uint64_t round) {
    const Part own = PartOf(index_, round);
    return ForEachPeer([&](int to, int from) -> Status {
      const Part theirs = PartOf(to, round);
      TFC_RETURN_IF_ERROR(Receive(from, 2 * round, {MutableSpan{Place(from, round), own.count() * in_}}, &receives_));
      return Send(to, 2 * round, Input(theirs), theirs.count(), &sends_);
    });
  }

  void Combine(uint64_t round) {
    const Part own = PartOf(index_, round);
    std::vector<const std::byte*> inputs(static_cast<size_t>(size_));
    const auto combine = [&](const std::byte* mine, std::byte* to, size_t done, size_t count) {
      for (int member = 0; member < size_; ++member)
        inputs[static_cast<size_t>(member)] = Place(member, round) + done * in_;
      inputs[static_cast<size_t>(index_)] = mine;
      ReduceArrays(reduction_, inputs.data(), inputs.size(), to, count);
    };
    ForEachPieceOf(in_, Input(own), out_, Output(own), combine);
  }

  Status ExpectResults(uint64_t round) {
    return ForEachPeer(
        [&](int, int from) { return Receive(from, 2 * round + 1, Output(PartOf(from, round)), &results_); });
  }

  Status SendResults(uint64_t round) {
    const Part own = PartOf(index_, round);
    return ForEachPeer(
        [&](int to, int) { return Send(to, 2 * round + 1, AsConst(Output(own)), own.count(), &sent_results_); });
  }

  // An empty part is never sent.
  Status Send(int peer, uint64_t step, const ConstSpans& spans, size_t count, TicketQueue* queue) {
    Ticket ticket = 0;
    if (count > 0) TFC_RETURN_IF_ERROR(requests_.Send(peer, static_cast<uint32_t>(step), spans, &ticket));
    queue->Add(ticket);
    return Status::Ok();
  }
  Status Receive(int peer, uint64_t step, const MutableSpans& spans, TicketQueue* queue) {
    Ticket ticket = 0;
    if (TotalSize(spans) > 0) TFC_RETURN_IF_ERROR(requests_.Receive(peer, static_cast<uint32_t>(step), spans, &ticket));
    queue->Add(ticket);
    return Status::Ok();
  }

  const int size_;
  const int index_;
  const Reduction& reduction_;
  const size_t in_;
  const size_t out_;
  const SpanIndex<ConstSpan> input_;
  const std::vector<size_t>& offsets_;
  const SpanIndex<MutableSpan> output_;
  const bool to_all_;
  const size_t segment_;
  const uint64_t rounds_;
  const std::unique_ptr<std::byte[]> room_;
  Requests requests_;
  TicketQueue sends_;
  TicketQueue receives_;
  TicketQueue results_;
  TicketQueue sent_results_;
};

}  // namespace

Status DirectAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                       const MutableSpans& output) {
  const int size = context.members.size();
  if (size == 1) {
    ConvertSpans(reduction, input, output);
    return Status::Ok();
  }
  const std::vector<size_t> offsets = EvenOffsets(TotalSize(output) / reduction.output_size(), 1, size);
  return Direct(context, "direct all-reduce", reduction, input, offsets, output, true).Run();
}

Status DirectReduceScatter(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                           const std::vector<size_t>& offsets, const MutableSpans& output) {
  if (context.members.size() == 1) {
    ConvertSpans(reduction, input, output);
    return Status::Ok();
  }
  std::vector<size_t> elements;
  for (const size_t offset : offsets) elements.push_back(offset / reduction.input_size());
  return Direct(context, "direct reduce-scatter", reduction, input, elements, output, false).Run();
}

}  // namespace tfc
