// Broadcast: a binomial tree of whole buffers, or a chain through which segments are pipelined.
// Places count from the root: place = (index - root) mod size.
#include <algorithm>
#include <deque>
#include <vector>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/select.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

constexpr size_t kAhead = 4;  // segments posted before the first is waited for

int MemberAt(const Members& members, int root, int place) { return (root + place) % members.size(); }

// The highest bit of a place (> 0) says who its parent is; the bits above it, who its children are.
int ParentBit(int place) {
  int bit = 1;
  while (2 * bit <= place) bit *= 2;
  return bit;
}

Status Binomial(const TransportContext& context, int root, int place, const ConstSpans& data,
                const MutableSpans& output) {
  Requests requests(context, "binomial broadcast", 1);
  int bit = 1;
  if (place > 0) {
    bit = ParentBit(place);
    Ticket ticket = 0;
    TFC_RETURN_IF_ERROR(requests.Receive(MemberAt(context.members, root, place - bit), 0, output, &ticket));
    TFC_RETURN_IF_ERROR(requests.Wait(ticket, 0));
    bit *= 2;
  }
  TicketQueue sends(requests);
  for (; place + bit < context.members.size(); bit *= 2) {
    Ticket ticket = 0;
    TFC_RETURN_IF_ERROR(requests.Send(MemberAt(context.members, root, place + bit), 0, data, &ticket));
    sends.Add(ticket);
  }
  return sends.WaitAll();
}

// One link of the chain: receives segments from the place before, sends them to the place after.
class Chain {
 public:
  Chain(const TransportContext& context, int root, int place, const ConstSpans& data, const MutableSpans& output)
      : members_(context.members),
        root_(root),
        place_(place),
        data_(data),
        output_(output),
        segments_((data_.size() + kBroadcastSegment - 1) / kBroadcastSegment),
        requests_(context, "chain broadcast", segments_),
        sends_(requests_),
        receives_(requests_) {}

  Status Run() {
    for (size_t segment = 0; segment < std::min(kAhead, segments_); ++segment)
      TFC_RETURN_IF_ERROR(PostReceive(segment));
    for (size_t segment = 0; segment < segments_; ++segment) {
      TFC_RETURN_IF_ERROR(receives_.WaitBelow(segment + 1));
      TFC_RETURN_IF_ERROR(Send(segment));
      if (segment + kAhead < segments_) TFC_RETURN_IF_ERROR(PostReceive(segment + kAhead));
    }
    return sends_.WaitAll();
  }

 private:
  Status PostReceive(size_t segment) {
    if (place_ == 0) return Status::Ok();
    Ticket ticket = 0;
    TFC_RETURN_IF_ERROR(requests_.Receive(MemberAt(members_, root_, place_ - 1), static_cast<uint32_t>(segment),
                                          output_.Slice(Begin(segment), End(segment)), &ticket));
    receives_.Add(ticket);
    return Status::Ok();
  }

  // At most kAhead segments are under way, so the next link never holds more than it asked for.
  Status Send(size_t segment) {
    if (place_ + 1 == members_.size()) return Status::Ok();
    if (segment >= kAhead) TFC_RETURN_IF_ERROR(sends_.WaitBelow(segment - kAhead + 1));
    Ticket ticket = 0;
    TFC_RETURN_IF_ERROR(requests_.Send(MemberAt(members_, root_, place_ + 1), static_cast<uint32_t>(segment),
                                       data_.Slice(Begin(segment), End(segment)), &ticket));
    sends_.Add(ticket);
    return Status::Ok();
  }

  size_t Begin(size_t segment) const { return segment * kBroadcastSegment; }
  size_t End(size_t segment) const { return std::min(Begin(segment) + kBroadcastSegment, data_.size()); }

  const Members& members_;
  const int root_;
  const int place_;
  const SpanIndex<ConstSpan> data_;
  const SpanIndex<MutableSpan> output_;
  const size_t segments_;
  Requests requests_;
  TicketQueue sends_;
  TicketQueue receives_;
};

}  // namespace

Status BroadcastFrom(const TransportContext& context, int root, const ConstSpans& input, const MutableSpans& output) {
  const int size = context.members.size();
  const int place = (context.members.index - root + size) % size;
  const ConstSpans data = place == 0 ? input : AsConst(output);
  if (size > 1) {
    const bool chain = SelectBroadcastShape(TotalSize(data), size) == BroadcastShape::kChain;
    TFC_RETURN_IF_ERROR(chain ? Chain(context, root, place, data, output).Run()
                              : Binomial(context, root, place, data, output));
  }
  if (place == 0) CopySpans(input, output);
  return Status::Ok();
}

}  // namespace tfc
