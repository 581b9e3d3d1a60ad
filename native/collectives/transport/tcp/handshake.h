// The handshake in which two ranks prove to each other that they belong to the same job before any message flows.
//
//   connecting side                                    listening side
//   HELLO   who, to whom, what for, nonce      ->
//                                              <-      CHALLENGE  nonce, HMAC("server", HELLO, nonces)
//   PROOF   HMAC("client", HELLO, nonces)      ->
//                                              <-      DECISION   yes or why not, HMAC("decision", ...)
//
// All HMACs are HMAC-SHA256 with the job key over everything said before. Frames have fixed sizes;
// a frame header that announces anything else ends the connection before its body is read. To the header of
// another version the listening side answers with its own, so that the connecting side does not try again. Both
// sides are state machines over a non-blocking socket, so that one thread can run many of them and a
// silent peer delays no other. Neither reads a byte beyond its last frame.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_HANDSHAKE_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_HANDSHAKE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/sha256.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tfc {

using JobKey = std::vector<uint8_t>;  // 16 to 64 bytes

enum class Purpose : uint16_t { kControl = 1, kData = 2 };

// The identity that the connecting rank states.
struct Hello {
  Purpose purpose = Purpose::kData;
  uint64_t generation = 0;
  int32_t sender = 0;    // rank that connects
  int32_t receiver = 0;  // rank that it wants to reach
};

// The identities that the listening rank accepts.
struct Identity {
  int32_t rank = 0;
  int32_t size = 1;
  uint64_t generation = 0;
};

// The event that a handshake waits for.
enum class HandshakeWants { kRead, kWrite, kTime, kNothing };  // kTime: a later attempt; kNothing: it has ended well

namespace handshake_internal {

// Bytes on their way in or out of one fixed-size frame.
struct Buffer {
  std::array<uint8_t, 128> bytes = {};
  size_t size = 0;  // of the frame
  size_t done = 0;  // already moved
};

}  // namespace handshake_internal

// The listening side of one connection. Fails with PROTOCOL (garbage, wrong key, wrong generation or
// rank), PEER_LOST or IO; the message says who and why, for the log. Then just destroy it. Its owner
// decides how long it may last.
class ServerHandshake {
 public:
  ServerHandshake(UniqueFd fd, const SocketAddress& from, const JobKey& key, const Identity& self);

  int fd() const { return fd_.get(); }  // borrowed
  // Goes as far as it can without blocking. Call again when the descriptor is ready.
  Result<HandshakeWants> Advance();
  // True if a whole HELLO has come: the peer at least speaks the protocol.
  bool said_hello() const { return state_ != State::kReadHello; }
  // The error that Advance would give, for an end that the owner decides on.
  Status Refusal(const Status& why) const { return why.WithContext("refused the connection from " + from_.ToString()); }
  // Once Advance has returned kNothing: who it is, and the connection.
  const Hello& hello() const { return hello_; }
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  enum class State { kReadHello, kWriteChallenge, kReadProof, kWriteDecision, kDone };

  Result<HandshakeWants> Step();
  Result<HandshakeWants> Read();
  Result<HandshakeWants> Write();
  Status AnswerHello();
  Status AnswerProof();
  uint32_t Judge() const;

  UniqueFd fd_;
  SocketAddress from_;
  JobKey key_;
  Identity self_;
  State state_ = State::kReadHello;
  handshake_internal::Buffer buffer_;
  std::vector<uint8_t> transcript_;  // frames said so far
  Hello hello_;
  uint32_t decision_ = 0;  // handshake_internal::Decision
};

// One attempt of the connecting side. Fails with PEER_LOST (no process listens there, or the connection ended),
// DEADLINE_EXCEEDED, PROTOCOL (the other side has another key or refuses the connection) or IO; all name the
// receiver's rank.
class ClientHandshake {
 public:
  // Makes the socket and begins to connect.
  static Result<ClientHandshake> Start(const SocketAddress& to, const Hello& hello, const JobKey& key,
                                       Deadline deadline);

  int fd() const { return fd_.get(); }  // borrowed
  Deadline deadline() const { return deadline_; }
  Result<HandshakeWants> Advance();
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  enum class State { kConnect, kWriteHello, kReadChallenge, kWriteProof, kReadDecision, kDone };

  ClientHandshake(UniqueFd fd, const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline);
  Result<HandshakeWants> Step();
  Result<HandshakeWants> FinishConnect();
  Result<HandshakeWants> Read();
  Result<HandshakeWants> Write();
  Status SayHello();
  Status AnswerChallenge();
  Status ObeyDecision();
  Status Name(const Status& status) const;

  UniqueFd fd_;
  SocketAddress to_;
  Hello hello_;
  JobKey key_;
  Deadline deadline_;
  State state_ = State::kConnect;
  handshake_internal::Buffer buffer_;
  std::vector<uint8_t> transcript_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_HANDSHAKE_H_
