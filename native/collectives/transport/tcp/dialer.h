// Makes a connection to a peer, with the handshake; where an attempt got lost it makes another one.
//
// A listener that a thousand peers reach at once may lose some of them: the kernel's queue was full, or the
// handshake got no place in time. An attempt that was closed, reset or never answered is therefore repeated,
// after a pause that grows and is random, so that those who were lost together do not come again together.
// What repeating cannot mend ends it at once: no process listens (a listener exists before its address is
// published, so the process is gone), the other side has another key, or it says why it refuses.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_DIALER_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_DIALER_H_

#include <optional>

#include "base/deadline.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/transport/tcp/handshake.h"

namespace tfc {

class Dialer {
 public:
  // Lasts until `deadline` at most.
  Dialer(const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline);

  // The descriptor of the current attempt, to be watched for what Advance wants; -1 in a pause. Borrowed; another one
  // for each attempt.
  int fd() const { return attempt_ ? attempt_->fd() : -1; }
  // Attempts so far: after a change there is another descriptor to watch.
  int attempts() const { return attempts_; }
  // The time at which to call Advance even if the descriptor is not ready.
  Deadline wake() const { return attempt_ ? deadline_ : next_; }

  // Goes as far as it can without blocking; the first call begins. Errors are those of ClientHandshake.
  Result<HandshakeWants> Advance();
  // Once Advance has returned kNothing.
  UniqueFd TakeFd() { return attempt_->TakeFd(); }

 private:
  Result<HandshakeWants> Attempt();
  Status Pause(const Status& lost);
  Status GiveUp(const Status& last) const;

  SocketAddress to_;
  Hello hello_;
  JobKey key_;
  Deadline deadline_;
  std::optional<ClientHandshake> attempt_;
  int attempts_ = 0;
  Deadline next_;  // the end of the pause
};

// The same, blocking at most until the deadline. Ends early with CANCELLED when `cancel_fd` (-1: none) becomes
// readable; it is not read.
Result<UniqueFd> Connect(const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline,
                         int cancel_fd);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_DIALER_H_
