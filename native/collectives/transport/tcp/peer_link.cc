#include "collectives/transport/tcp/peer_link.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

namespace tfc {
namespace {

bool IsUnreachable(int err) {
  return err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == EHOSTDOWN || err == ENETDOWN;
}

bool IsClosed(int err) { return err == 0 || err == ECONNRESET || err == EPIPE; }

}  // namespace

std::string PeerLink::Name() const { return "rank " + std::to_string(peer_) + " (" + address_.ToString() + ")"; }

Status PeerLink::Connect(const Hello& hello, const JobKey& key, Deadline deadline) {
  dialer_.emplace(address_, hello, key, deadline);
  state_ = State::kConnecting;
  bool progress = false;  // no caller waits for this peer yet
  return Dial(&progress);
}

void PeerLink::Adopt(UniqueFd fd) {
  socket_ = std::move(fd);
  fd_ = socket_.get();
  state_ = State::kOpen;
  readable_ = true;
  writable_ = true;
}

Status PeerLink::PostSend(Request* request, bool* progress) {
  if (state_ == State::kLost) return lost_;
  out_.Queue(request);
  return CanSend() ? Send(progress) : Status::Ok();
}

Status PeerLink::PostReceive(Request* request, bool* progress) {
  if (state_ == State::kLost && !in_.HasKept(request->tag)) return lost_;
  const Status status = in_.Post(request);
  if (status.ok()) return CanSend() ? Send(progress) : status;
  if (status.code() == Code::kInvalidArgument) return status;
  return Lose(Status(status.code(), Name() + ": " + status.message(), peer_));
}

void PeerLink::Notice(uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable_ = true;
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) writable_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_ = true;
}

bool PeerLink::Ready() const {
  if (state_ == State::kConnecting) return readable_ || writable_;
  return state_ == State::kOpen && (readable_ || CanSend());
}

Status PeerLink::Pump(bool eager, bool* progress) {
  if (state_ == State::kConnecting) TFC_RETURN_IF_ERROR(Dial(progress));
  if (CanSend()) TFC_RETURN_IF_ERROR(Send(progress));
  if (state_ == State::kOpen && (readable_ || eager)) TFC_RETURN_IF_ERROR(Receive(progress));
  if (CanSend()) TFC_RETURN_IF_ERROR(Send(progress));  // what the peer has been waiting for
  return Status::Ok();
}

Status PeerLink::Dial(bool* progress) {
  readable_ = false;
  writable_ = false;
  const int attempts = dialer_->attempts();
  const Result<HandshakeWants> wants = dialer_->Advance();
  if (!wants.ok()) {
    *progress = true;
    return Lose(wants.status());
  }
  const bool another = dialer_->attempts() != attempts;
  if (another) hung_up_ = false;  // it was said of an attempt that got lost
  fd_ = dialer_->fd();
  new_fd_ = fd_ >= 0 && (new_fd_ || another);
  if (wants.value() != HandshakeWants::kNothing) return Status::Ok();
  *progress = true;
  Adopt(dialer_->TakeFd());
  dialer_.reset();
  return Status::Ok();
}

Status PeerLink::Send(bool* progress) {
  if (send_error_ != 0) return Status::Ok();
  const SendStream::Outcome outcome = out_.Pump(fd_);
  if (outcome.bytes > 0) *progress = true;
  if (outcome.blocked) writable_ = false;
  if (outcome.error == 0) return Status::Ok();
  // The peer may have sent its last messages before it went: they still count, if they can be read.
  send_error_ = outcome.error;
  writable_ = false;
  readable_ = true;
  return Status::Ok();
}

Status PeerLink::Receive(bool* progress) {
  const ReceiveStream::Outcome outcome = in_.Pump(fd_);
  if (outcome.bytes > 0) *progress = true;
  if (!outcome.status.ok()) {
    return Lose(Status(outcome.status.code(), Name() + ": " + outcome.status.message(), peer_));
  }
  const bool more = outcome.bytes > 0 && hung_up_;  // a short read says nothing about the end behind it
  if (outcome.blocked && !more) readable_ = false;
  const bool broken = outcome.error != 0 || (outcome.blocked && !more && send_error_ != 0);
  if (!outcome.ended && !broken) return Status::Ok();
  *progress = true;
  return Lose(EndOfStream(outcome.error != 0 ? outcome.error : send_error_));
}

Status PeerLink::EndOfStream(int error) const {
  if (IsClosed(error)) return Status(Code::kPeerLost, Name() + " closed the connection", peer_, error);
  const Status detail = Status::FromErrno("its connection", error);
  if (!IsUnreachable(error)) return Status(detail.code(), Name() + ": " + detail.message(), peer_, error);
  return Status(Code::kPeerLost, Name() + " cannot be reached any more: " + detail.message(), peer_, error);
}

Status PeerLink::LookAtHost(bool* waiting) {
  if (state_ != State::kOpen) return Status::Ok();
  const AckWatch::State state = acks_.Look(fd_);
  if (state == AckWatch::State::kWaiting) *waiting = true;
  if (state != AckWatch::State::kSilent) return Status::Ok();
  return Lose(
      Status(Code::kPeerLost, Name() + " cannot be reached any more: " + AckWatch::Explain(), peer_, ETIMEDOUT));
}

// From now on there is no connection. An error for the transport only if a request needs the peer, or
// if the peer did something worse than going away.
Status PeerLink::Lose(const Status& why) {
  lost_ = why;
  state_ = State::kLost;
  dialer_.reset();
  socket_.Reset();
  fd_ = -1;
  out_.Abandon();
  return HasUnfinished() || why.code() != Code::kPeerLost ? why : Status::Ok();
}

std::string PeerLink::Missing(const Request& request) const {
  const bool is_open = state_ == State::kOpen;
  if (state_ == State::kIdle) return Name() + " has not connected to this rank";
  if (state_ == State::kConnecting) return Name() + " has not answered this rank's connection";
  const size_t moved = request.cursor.total() - request.cursor.left();
  const std::string amount = std::to_string(moved) + " of " + std::to_string(request.cursor.total()) + " bytes";
  if (is_open && request.is_send) return Name() + " has taken " + amount;
  if (is_open && moved == 0) return Name() + " has sent nothing";
  return Name() + " has sent " + amount;
}

}  // namespace tfc
