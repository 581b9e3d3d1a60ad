// Posting and waiting with the operation's tag, deadline and error context. Internal to algorithms/.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_REQUESTS_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/span.h"
#include "base/status.h"
#include "collectives/algorithms/context.h"
#include "collectives/transport/transport.h"

namespace tfc {

// The requests of one algorithm. Peers are indices among the members. An error leaves requests behind:
// the transport is dead then and touches their memory no more.
class Requests {
 public:
  // `phase` names the algorithm in errors: "ring all-reduce"; `steps` is how many waits it has.
  Requests(const TransportContext& context, const char* phase, uint64_t steps)
      : context_(context), phase_(phase), steps_(steps) {}

  Status Send(int peer, uint32_t step, const ConstSpans& spans, Ticket* ticket);
  Status Receive(int peer, uint32_t step, const MutableSpans& spans, Ticket* ticket);
  // Waits for a ticket; 0 is done at once. `step` is for the error message.
  Status Wait(Ticket ticket, uint64_t step);

 private:
  Status Explain(const Status& status, uint64_t step) const;

  const TransportContext& context_;
  const char* phase_;
  uint64_t steps_;
};

// Tickets 0, 1, 2, ... that are waited for in the order in which they were added.
class TicketQueue {
 public:
  explicit TicketQueue(Requests& requests) : requests_(requests) {}

  void Add(Ticket ticket) { tickets_.push_back(ticket); }
  // Waits for all tickets with a number below `end` (or all there are).
  Status WaitBelow(uint64_t end);
  Status WaitAll() { return WaitBelow(done_ + tickets_.size()); }

 private:
  Requests& requests_;
  std::deque<Ticket> tickets_;
  uint64_t done_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_REQUESTS_H_
