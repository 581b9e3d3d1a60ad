// Moves tagged spans between ranks, or says exactly why not.
//
// A transport is driven by one thread at a time. Posting never blocks; Wait drives all traffic of
// the transport until the one request is done. A message whose receive is not posted yet is kept
// until it is, by the receiver or by the sender, whose send may not be done before; it never holds
// up other messages. So sends may arrive in another order than posted.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TRANSPORT_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TRANSPORT_H_

#include <cstdint>

#include "base/deadline.h"
#include "base/span.h"
#include "base/status.h"

namespace tfc {

// Says which message of which operation this is. Equal on the sender and on the receiver.
struct Tag {
  uint32_t channel = 0;    // independent stream of operations
  uint32_t step = 0;       // message number inside the operation, between this pair of ranks
  uint64_t sequence = 0;   // number of the operation in its channel
  uint64_t signature = 0;  // hash of what the operation is; a different one is a MISMATCH
};

// A posted send or receive; valid until Wait has returned for it. 0 is never given out.
using Ticket = uint64_t;

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The memory behind the spans must stay as it is until Wait has returned for the ticket.
  virtual Result<Ticket> PostSend(int peer, const Tag& tag, const ConstSpans& spans) = 0;
  virtual Result<Ticket> PostReceive(int peer, const Tag& tag, const MutableSpans& spans) = 0;

  // Blocks until the request is done. Errors: DEADLINE_EXCEEDED or PEER_LOST with the peer,
  // MISMATCH when a message with the same channel, sequence and step has another signature or
  // length, ABORTED or whatever else Interrupt was given. After an error the transport is dead:
  // every later call returns the same error.
  virtual Status Wait(Ticket ticket, Deadline deadline) = 0;

  // True if the request is done (Wait would return Ok at once). Drives traffic without blocking.
  virtual Result<bool> Test(Ticket ticket) = 0;

  // Ends all present and later calls with `status`. May be called from any thread; first one wins.
  virtual void Interrupt(const Status& status) = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TRANSPORT_H_
