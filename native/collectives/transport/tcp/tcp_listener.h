// The socket at which the peers of this process arrive.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_TCP_LISTENER_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_TCP_LISTENER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "base/socket_address.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tfc {

// The ports from `low` to `high`; 0 and 0: all.
struct PortRange {
  uint16_t low = 0;
  uint16_t high = 0;
};

class TcpListener {
 public:
  struct Incoming {
    UniqueFd fd;         // non-blocking, close-on-exec; not valid if no connection waits
    SocketAddress from;  // of the peer
  };

  // Binds to a numeric host, and listens: on the first free port of the range, or on one of the kernel's choice.
  static Result<TcpListener> Create(const std::string& host, PortRange ports = {});

  // The address to which peers connect; with the real port.
  const SocketAddress& address() const { return address_; }
  int fd() const { return fd_.get(); }  // readable when a connection waits; borrowed

  // Never blocks. A connection that died while it waited is skipped.
  Result<Incoming> Accept() const;

 private:
  TcpListener(UniqueFd fd, SocketAddress address) : fd_(std::move(fd)), address_(address) {}

  UniqueFd fd_;
  SocketAddress address_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_TCP_LISTENER_H_
