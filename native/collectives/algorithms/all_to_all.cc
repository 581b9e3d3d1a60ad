// Pairwise exchange: in step s every member sends to the one s places on and receives from the one
// s places back, so no rank receives from two at once.
#include <memory>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

constexpr int kAhead = 4;  // steps posted before the first is waited for: hides the latency

class Exchange {
 public:
  Exchange(const TransportContext& context, const ConstSpans& input, const std::vector<size_t>& send_offsets,
           const MutableSpans& output, const std::vector<size_t>& receive_offsets)
      : size_(context.members.size()),
        index_(context.members.index),
        input_(input),
        send_offsets_(send_offsets),
        output_(output),
        receive_offsets_(receive_offsets),
        requests_(context, "pairwise all-to-all", static_cast<uint64_t>(size_ - 1)),
        sends_(requests_),
        receives_(requests_) {}

  Status Run() {
    for (int step = 1; step < size_ + kAhead; ++step) {
      if (step < size_) TFC_RETURN_IF_ERROR(Post(step));
      if (step == 1) CopySpans(Outgoing(index_), Incoming(index_));
      if (step <= kAhead) continue;
      TFC_RETURN_IF_ERROR(receives_.WaitBelow(static_cast<uint64_t>(step - kAhead)));
      TFC_RETURN_IF_ERROR(sends_.WaitBelow(static_cast<uint64_t>(step - kAhead)));
    }
    return Status::Ok();
  }

 private:
  ConstSpans Outgoing(int member) const {
    return input_.Slice(At(send_offsets_, member), At(send_offsets_, member + 1));
  }
  MutableSpans Incoming(int member) const {
    return output_.Slice(At(receive_offsets_, member), At(receive_offsets_, member + 1));
  }
  static size_t At(const std::vector<size_t>& offsets, int member) { return offsets[static_cast<size_t>(member)]; }

  Status Post(int step) {
    const int to = (index_ + step) % size_, from = (index_ - step + size_) % size_;
    Ticket sent = 0, received = 0;
    TFC_RETURN_IF_ERROR(requests_.Receive(from, static_cast<uint32_t>(step), Incoming(from), &received));
    receives_.Add(received);
    TFC_RETURN_IF_ERROR(requests_.Send(to, static_cast<uint32_t>(step), Outgoing(to), &sent));
    sends_.Add(sent);
    return Status::Ok();
  }

  const int size_;
  const int index_;
  const SpanIndex<ConstSpan> input_;
  const std::vector<size_t>& send_offsets_;
  const SpanIndex<MutableSpan> output_;
  const std::vector<size_t>& receive_offsets_;
  Requests requests_;
  TicketQueue sends_;
  TicketQueue receives_;
};

}  // namespace

Status AllToAll(const TransportContext& context, const ConstSpans& input, const std::vector<size_t>& send_offsets,
                const MutableSpans& output, const std::vector<size_t>& receive_offsets) {
  if (!Overlap(input, output)) return Exchange(context, input, send_offsets, output, receive_offsets).Run();
  const size_t total = TotalSize(input);
  const std::unique_ptr<std::byte[]> copy(new std::byte[total]);
  Gather(input, copy.get());
  const ConstSpans copied{ConstSpan{copy.get(), total}};
  return Exchange(context, copied, send_offsets, output, receive_offsets).Run();
}

}  // namespace tfc
