// Messages over TCP: one connection for each pair of ranks that talk, made when they first do.
//
// The higher rank of a pair connects, the lower one waits for it. Payloads go straight from and to
// the caller's spans; only a message whose receive is not posted yet is copied.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/event_fd.h"
#include "base/log.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/transport/tcp/handshake.h"
#include "collectives/transport/transport.h"

namespace tfc {

struct TcpTransportOptions {
  Identity self;
  JobKey key;
  std::vector<SocketAddress> addresses;  // of all ranks, in rank order
  double connect_seconds = 30;           // for connecting to one peer, handshake included
  int spin_us = 0;                       // look again for that long before sleeping, as long as that finds something
  // Others may end a Poll by it, from other processes too; drained by the transport, which it must outlive.
  const EventFd* bell = nullptr;
  // Messages of one peer without a posted receive are kept up to this many bytes, headers included; those
  // beyond it stay with their sender until their receives are posted. The same on all ranks.
  size_t max_unexpected_bytes = size_t{64} << 20;
  Log log;
};

// Driven by one thread at a time, save for AddConnection, Wake and Interrupt. A request is done when
// its bytes are in the kernel (send; a large one may also wait for its receive) or in the spans (receive). A ticket
// stays valid until Wait has returned for it, also after Test has said true. INVALID_ARGUMENT (a bad peer, a request to
// the own rank, an unknown ticket, a second receive with the same tag) leaves the transport alive; every other error
// ends it.
//
// When a peer's connection ends, messages that have arrived in full still satisfy their receives;
// then any unfinished request for that peer ends every Wait, Test and Poll that has to wait. A peer
// that no request waits for may go unnoticed.
class TcpTransport final : public Transport {
 public:
  static Result<std::unique_ptr<TcpTransport>> Create(const TcpTransportOptions& options);
  ~TcpTransport() override;  // closes all connections

  int rank() const override;
  int size() const override;
  Result<Ticket> PostSend(int peer, const Tag& tag, const ConstSpans& spans) override;
  Result<Ticket> PostReceive(int peer, const Tag& tag, const MutableSpans& spans) override;
  Status Wait(Ticket ticket, Deadline deadline) override;
  Result<bool> Test(Ticket ticket) override;
  void Interrupt(const Status& status) override;

  // Drives traffic; sleeps until some request may have changed, Wake was called, the bell was signalled or the deadline
  // has passed (which is no error). What changed since the last Poll, in whatever call, makes it return at once: so a
  // loop of "test all requests, then Poll" misses nothing. `spin`: the caller waits for a request, so it is worth to
  // look again for options.spin_us before sleeping.
  Status Poll(Deadline deadline, bool spin = true);
  // Any thread.
  void Wake();

  // Hands over an authenticated data connection from a higher rank. Any thread. On error (not a
  // higher rank, a second connection of that rank) the connection is closed and nothing changes.
  Status AddConnection(int peer, UniqueFd fd);

 private:
  struct Impl;
  explicit TcpTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_TCP_TRANSPORT_H_
