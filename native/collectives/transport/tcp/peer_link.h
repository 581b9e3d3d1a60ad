// Everything between this rank and one peer: the connection, its making and its end.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_PEER_LINK_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_PEER_LINK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "collectives/transport/tcp/ack_watch.h"
#include "collectives/transport/tcp/dialer.h"
#include "collectives/transport/tcp/handshake.h"
#include "collectives/transport/tcp/receive_stream.h"
#include "collectives/transport/tcp/request_table.h"
#include "collectives/transport/tcp/room.h"
#include "collectives/transport/tcp/send_stream.h"

namespace tfc {

class PeerLink {
 public:
  enum class State { kIdle, kConnecting, kOpen, kLost };

  struct Options {
    uint64_t generation = 0;
    size_t room_bytes = 0;  // for messages without a posted receive; the same at the peer
  };
  PeerLink(int peer, const SocketAddress& address, const Options& options)
      : peer_(peer),
        address_(address),
        room_(options.room_bytes),
        out_(options.generation, &room_),
        in_(options.generation, &room_, &out_) {}
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  int peer() const { return peer_; }
  State state() const { return state_; }
  int fd() const { return fd_; }  // to watch, edge-triggered, for everything; -1 while there is none
  // True if fd() has changed since the last call, because an attempt to connect has begun: watch it.
  bool TakeNewFd() { return std::exchange(new_fd_, false); }
  // The time at which to call Notice even if the descriptor is silent; only while connecting.
  Deadline connect_deadline() const { return dialer_->wake(); }
  std::string Name() const;  // "rank 2 (10.0.0.7:3412)"

  // Begins to connect / takes a connection that the peer made. Only while idle.
  Status Connect(const Hello& hello, const JobKey& key, Deadline deadline);
  void Adopt(UniqueFd fd);

  // The request must stay until it is done or the link is gone. Errors: INVALID_ARGUMENT, or the
  // transport is dead. What may leave at once does, and then sets `progress`.
  Status PostSend(Request* request, bool* progress);
  Status PostReceive(Request* request, bool* progress);

  // Takes the events that epoll reported for fd().
  void Notice(uint32_t events);
  // True if Pump may make progress, as far as is known.
  bool Ready() const;
  // Moves what can be moved without blocking, and sets `progress` if something was. `eager`: look for
  // data even if none has been announced. An error means that the transport is dead.
  Status Pump(bool eager, bool* progress);
  // Looks whether the peer's host is still there; once in AckWatch::kSeconds. Sets `waiting` if it has to be looked at
  // again. An error means that the transport is dead.
  Status LookAtHost(bool* waiting);
  // The reason why an unfinished request is not done yet.
  std::string Missing(const Request& request) const;

 private:
  bool HasUnfinished() const { return out_.HasUnfinished() || in_.HasPosted(); }
  bool CanSend() const { return state_ == State::kOpen && writable_ && out_.HasFrames(); }
  Status Dial(bool* progress);
  Status Send(bool* progress);
  Status Receive(bool* progress);
  Status Lose(const Status& why);
  Status EndOfStream(int error) const;

  int peer_;
  SocketAddress address_;
  State state_ = State::kIdle;
  std::optional<Dialer> dialer_;
  UniqueFd socket_;  // while open
  int fd_ = -1;      // of the dialer or the socket
  bool new_fd_ = false;
  AckWatch acks_;
  Room room_;
  SendStream out_;
  ReceiveStream in_;
  bool readable_ = false;  // may have data: no read has found it empty since it was announced
  bool writable_ = false;
  bool hung_up_ = false;  // the end of the stream is near: read up to it
  int send_error_ = 0;    // of a failed write; what the peer sent before is still read
  Status lost_;           // why, once lost
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_PEER_LINK_H_
