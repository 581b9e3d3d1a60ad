// The control connections: one of every rank to rank 0 for small messages (abort, leave, views,
// negotiation), and the monitor thread that owns it, the listener and the handshakes of those who connect.
//
// The monitor sleeps in epoll: idle control connections cost nothing. Messages between a rank and rank 0 arrive
// in the order sent. Bulk data never travels here.
#ifndef TFCOLLECTIVE_CONTROL_CONTROL_CONNECTIONS_H_
#define TFCOLLECTIVE_CONTROL_CONTROL_CONNECTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/transport/tcp/handshake.h"
#include "collectives/transport/tcp/tcp_listener.h"

namespace tfc {

// The callbacks of the monitor thread; none may block.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // `from` is the rank at the other end: always 0 on ranks other than 0.
  virtual void OnMessage(int from, uint8_t type, const std::string& payload) = 0;
  // The connection to `rank` ended. After it no message of that rank arrives.
  virtual void OnClosed(int rank, const Status& why) = 0;
  // An authenticated data connection of a peer: for the transport.
  virtual void OnDataConnection(int peer, UniqueFd fd) = 0;
  // Timers: does what is due and says when to be called again, if ever.
  virtual std::optional<Deadline::Clock::time_point> OnTick(Deadline::Clock::time_point now) = 0;
};

struct ControlOptions {
  Identity self;
  SocketAddress root;  // the address on which rank 0 listens
  JobKey key;
  Log log;
};

class ControlConnections {
 public:
  // `handler` must outlive the control connections.
  static Result<std::unique_ptr<ControlConnections>> Create(const ControlOptions& options, TcpListener listener,
                                                            ControlHandler* handler);
  ~ControlConnections();  // Stop() must have been called if Start() was
  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  // Starts the monitor and returns when this rank is connected: to rank 0, or, on rank 0, with all
  // others. Otherwise DEADLINE_EXCEEDED naming who is missing, or PEER_LOST as soon as one that had
  // connected is gone.
  Status Start(Deadline deadline);
  // Ends a Start that is under way, or the one that comes, with CANCELLED; one that has returned stays as it is. Any
  // thread.
  void CancelStart();
  // Rank 0: the ranks that have never connected.
  std::vector<int> Missing() const;
  // True if the calling thread is the monitor, which cannot Stop.
  bool IsMonitor() const;

  // Sends or queues a message; any thread, never blocks. Ranks other than 0 can send to 0 only. A message to
  // the own rank is delivered by the monitor like any other.
  void Send(int to, uint8_t type, const std::string& payload);
  // Rank 0: the same message to several ranks.
  void Send(const std::vector<int>& to, uint8_t type, const std::string& payload);
  // Rank 0: to every rank, itself included.
  void SendToAll(uint8_t type, const std::string& payload);
  // Runs `task` on the monitor thread, soon.
  void Post(std::function<void()> task);

  // Sends what is queued, says end-of-stream, waits until the peers have closed their ends too (or
  // the deadline), ends the monitor. Idempotent.
  void Stop(Deadline deadline);

 private:
  struct Impl;
  explicit ControlConnections(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_CONTROL_CONTROL_CONNECTIONS_H_
