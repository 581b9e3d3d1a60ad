// Lets authenticated peers in: a listener and the handshakes under way at it, behind one descriptor.
//
// Put fd() into an epoll set (or poll it) for reading and call Advance whenever it is readable. It
// becomes readable for newcomers, for progress of a handshake and for a handshake's timeout; a timer
// runs only while there are handshakes, so an idle acceptor causes no wake-up. One thread at a time.
#ifndef TFCOLLECTIVE_TRANSPORT_TCP_ACCEPTOR_H_
#define TFCOLLECTIVE_TRANSPORT_TCP_ACCEPTOR_H_

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/refusal_log.h"
#include "transport/tcp/tcp_listener.h"

namespace tfc {

struct AcceptorOptions {
  JobKey key;
  Identity self;
  Log log;  // refusals, as warnings
  double handshake_seconds = kHandshakeSeconds;
  size_t max_handshakes = 256;  // at once; a newcomer beyond them takes the place of the oldest
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

  // Does what can be done without blocking. What one stranger does wrong is logged and ends only its
  // own connection; an error means that the acceptor itself is broken.
  Result<std::vector<Accepted>> Advance();

 private:
  Acceptor(TcpListener listener, const AcceptorOptions& options);
  Status Open();
  void AcceptAll();
  void Admit(TcpListener::Incoming incoming);
  void DropOldest();
  void AdvanceOne(int fd, std::vector<Accepted>* accepted);
  void Expire(std::vector<Accepted>* accepted);
  void PauseListening(const Status& reason);
  void ArmTimer();

  TcpListener listener_;
  AcceptorOptions options_;
  RefusalLog refusals_;
  UniqueFd epoll_;
  UniqueFd timer_;
  bool listening_ = true;  // false for a moment after accept failed for want of descriptors
  bool timer_armed_ = false;
  std::unordered_map<int, ServerHandshake> handshakes_;  // by descriptor
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TRANSPORT_TCP_ACCEPTOR_H_
