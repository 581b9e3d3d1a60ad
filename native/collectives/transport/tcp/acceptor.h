// Lets authenticated peers in: a listener and the handshakes under way at it, behind one descriptor.
//
// Put fd() into an epoll set (or poll it) for reading and call Advance whenever it is readable. It
// becomes readable for new connections, for progress of a handshake and for a handshake's timeout; a
// timer runs only while there are handshakes, so an idle acceptor causes no wake-up. One thread at a time.
//
// No peer can keep another one out. A handshake that goes on is never ended for the sake of a new
// connection: at the limit of open handshakes the acceptor stops accepting, and the kernel's queue holds the
// rest. There, and where descriptors have run out, a peer that has not answered for crowded_seconds loses its
// place, so that connections that say nothing pass through quickly; an honest peer that was too slow comes
// again (see dialer.h).
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ACCEPTOR_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/transport/tcp/handshake.h"
#include "collectives/transport/tcp/refusal_log.h"
#include "collectives/transport/tcp/tcp_listener.h"

namespace tfc {

struct AcceptorOptions {
  JobKey key;
  Identity self;
  Log log;  // refusals, as warnings
  // The time that a peer may take for each of its two frames, normally and while there is no room for others.
  double handshake_seconds = 5;
  double crowded_seconds = 0.5;
  // Handshakes at once, in addition to one for every rank of the world.
  size_t spare_handshakes = 256;
};

// A peer that has proved the job key.
struct Accepted {
  Hello hello;
  UniqueFd fd;  // non-blocking, configured; nothing read beyond the handshake
};

class Acceptor {
 public:
  static Result<std::unique_ptr<Acceptor>> Create(TcpListener listener, const AcceptorOptions& options);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const SocketAddress& address() const { return listener_.address(); }
  int fd() const { return epoll_.get(); }  // borrowed

  // Does a bounded amount of what can be done without blocking. What one peer does wrong is logged and
  // ends only its own connection; an error means that the acceptor itself is broken.
  Result<std::vector<Accepted>> Advance();

 private:
  using Time = Deadline::Clock::time_point;
  struct Guest {
    ServerHandshake handshake;
    Time since;                      // when it was accepted, or has said HELLO
    std::list<int>::iterator place;  // in queue_
    HandshakeWants watched;
  };
  using Guests = std::unordered_map<int, Guest>;

  Acceptor(TcpListener listener, const AcceptorOptions& options);
  Status Open();
  void AcceptSome(std::vector<Accepted>* accepted);
  void Admit(TcpListener::Incoming incoming, std::vector<Accepted>* accepted);
  void AdvanceOne(int fd, std::vector<Accepted>* accepted);
  bool Settle(Guests::iterator guest, std::vector<Accepted>* accepted);
  void Remove(Guests::iterator guest);
  void Expire(std::vector<Accepted>* accepted);
  void PauseAccepting(const Status& reason);
  bool crowded() const { return paused_until_.has_value() || guests_.size() >= limit_; }
  Time LimitOf(const Guest& guest) const;
  void WatchListener();
  void ArmTimer();

  TcpListener listener_;
  const AcceptorOptions options_;
  const size_t limit_;  // of handshakes at once
  RefusalLog refusals_;
  UniqueFd epoll_;
  UniqueFd timer_;
  bool listening_ = true;             // the listener is watched
  std::optional<Time> paused_until_;  // accepting failed, for want of descriptors probably
  std::optional<Time> timer_for_;     // the time to which the timer is set
  Guests guests_;                     // by descriptor
  std::list<int> queue_;              // of the guests, the one that has not answered for longest first
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ACCEPTOR_H_
