#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "collectives/transport/tcp/handshake.h"
#include "collectives/transport/tcp/handshake_frames.h"
#include "collectives/transport/tcp/socket_options.h"

namespace tfc {

namespace hs = handshake_internal;

namespace {

std::string PeerName(const SocketAddress& address, int rank) {
  return "rank " + std::to_string(rank) + " (" + address.ToString() + ")";
}

// The peer is gone, as opposed to something wrong on this side.
bool IsPeersFault(int err) {
  return err == ECONNREFUSED || err == ECONNRESET || err == EHOSTUNREACH || err == ENETUNREACH || err == ETIMEDOUT ||
         err == EPIPE || err == EHOSTDOWN;
}

Status ConnectError(int err) {
  const Status status = Status::FromErrno("connect", err);
  return IsPeersFault(err) ? Status(Code::kPeerLost, status.message(), kNoPeer, err) : status;
}

}  // namespace

ClientHandshake::ClientHandshake(UniqueFd fd, const SocketAddress& to, const Hello& hello, const JobKey& key,
                                 Deadline deadline)
    : fd_(std::move(fd)), to_(to), hello_(hello), key_(key), deadline_(deadline) {}

Result<ClientHandshake> ClientHandshake::Start(const SocketAddress& to, const Hello& hello, const JobKey& key,
                                               Deadline deadline) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::FromErrno("socket", errno, hello.receiver);
  TFC_RETURN_IF_ERROR(ConfigureConnection(fd.get()));
  ClientHandshake handshake(std::move(fd), to, hello, key, deadline);
  // An interrupted connect goes on by itself, like one that is in progress.
  if (::connect(handshake.fd(), to.raw(), to.raw_size()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return handshake.Name(ConnectError(errno));
  }
  return handshake;
}

// The same error, about the receiver.
Status ClientHandshake::Name(const Status& status) const {
  return Status(status.code(), PeerName(to_, hello_.receiver) + ": " + status.message(), hello_.receiver,
                status.sys_errno());
}

Result<HandshakeWants> ClientHandshake::Advance() {
  Result<HandshakeWants> wants = Step();
  if (wants.ok() && wants.value() != HandshakeWants::kNothing && deadline_.Passed()) {
    const char* what = state_ == State::kConnect ? "could not be reached in time (does a firewall drop it?)"
                                                 : "did not finish the handshake in time";
    wants = Status(Code::kDeadlineExceeded, what);
  }
  if (wants.ok()) return wants;
  return Name(wants.status());
}

Result<HandshakeWants> ClientHandshake::Step() {
  while (state_ != State::kDone) {
    const bool reading = state_ == State::kReadChallenge || state_ == State::kReadDecision;
    Result<HandshakeWants> wants = state_ == State::kConnect ? FinishConnect() : reading ? Read() : Write();
    if (!wants.ok() || wants.value() != HandshakeWants::kNothing) return wants;
  }
  return HandshakeWants::kNothing;
}

Result<HandshakeWants> ClientHandshake::FinishConnect() {
  pollfd ready = {fd_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) return HandshakeWants::kWrite;
  int err = 0;
  socklen_t size = sizeof(err);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &err, &size) != 0) return Status::FromErrno("getsockopt", errno);
  if (err != 0) return ConnectError(err);
  TFC_RETURN_IF_ERROR(SayHello());
  state_ = State::kWriteHello;
  return HandshakeWants::kNothing;
}

Result<HandshakeWants> ClientHandshake::Read() {
  const bool first = state_ == State::kReadChallenge;
  Result<hs::Moved> moved = hs::Read(fd_.get(), first ? hs::Kind::kChallenge : hs::Kind::kDecision, &buffer_);
  if (!moved.ok()) return moved.status();
  if (moved.value() == hs::Moved::kBlocked) return HandshakeWants::kRead;
  TFC_RETURN_IF_ERROR(first ? AnswerChallenge() : ObeyDecision());
  state_ = first ? State::kWriteProof : State::kDone;
  return HandshakeWants::kNothing;
}

Result<HandshakeWants> ClientHandshake::Write() {
  Result<hs::Moved> moved = hs::Write(fd_.get(), &buffer_);
  if (!moved.ok()) return moved.status();
  if (moved.value() == hs::Moved::kBlocked) return HandshakeWants::kWrite;
  const bool first = state_ == State::kWriteHello;
  if (first) {
    hs::Expect<hs::ChallengeBody>(&buffer_);
  } else {
    hs::Expect<hs::DecisionBody>(&buffer_);
  }
  state_ = first ? State::kReadChallenge : State::kReadDecision;
  return HandshakeWants::kNothing;
}

Status ClientHandshake::SayHello() {
  hs::HelloBody body;
  body.purpose = static_cast<uint16_t>(hello_.purpose);
  body.sender = hello_.sender;
  body.receiver = hello_.receiver;
  body.generation = hello_.generation;
  TFC_RETURN_IF_ERROR(FillRandom(body.nonce.data(), body.nonce.size()));
  hs::Encode(hs::Kind::kHello, body, &buffer_);
  hs::Append(buffer_, &transcript_);
  return Status::Ok();
}

Status ClientHandshake::AnswerChallenge() {
  const auto challenge = hs::Decode<hs::ChallengeBody>(buffer_);
  const Digest expected = hs::Prove(key_, "server", transcript_, challenge.nonce.data(), challenge.nonce.size());
  if (!ConstantTimeEqual(challenge.proof, expected)) {
    return Status(Code::kProtocol, "it does not have the job key");
  }
  hs::Append(buffer_, &transcript_);
  hs::ProofBody proof;
  proof.proof = hs::Prove(key_, "client", transcript_, nullptr, 0);
  hs::Encode(hs::Kind::kProof, proof, &buffer_);
  hs::Append(buffer_, &transcript_);
  return Status::Ok();
}

Status ClientHandshake::ObeyDecision() {
  const auto body = hs::Decode<hs::DecisionBody>(buffer_);
  const Digest expected = hs::Prove(key_, "decision", transcript_, &body.decision, sizeof(body.decision));
  if (!ConstantTimeEqual(body.proof, expected)) return Status(Code::kProtocol, "its decision is forged");
  const auto decision = static_cast<hs::Decision>(body.decision);
  if (decision == hs::Decision::kAccepted) return Status::Ok();
  return Status(Code::kProtocol, std::string("it refused the connection: ") + hs::DecisionText(decision));
}

}  // namespace tfc
