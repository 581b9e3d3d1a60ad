// How two ranks prove to each other that they belong to the same job before any message flows.
//
//   connecting side                                    listening side
//   HELLO   who, to whom, what for, nonce      ->
//                                              <-      CHALLENGE  nonce, HMAC("server", HELLO, nonces)
//   PROOF   HMAC("client", HELLO, nonces)      ->
//                                              <-      VERDICT    yes or why not, HMAC("verdict", ...)
//
// All HMACs are HMAC-SHA256 with the job key over everything said before. Frames have fixed sizes;
// a frame header that announces anything else ends the connection before its body is read. Both
// sides are state machines over a non-blocking socket, so that one thread can run many of them and a
// stranger blocks nobody. Neither reads a byte beyond its last frame.
#ifndef TFCOLLECTIVE_TRANSPORT_TCP_HANDSHAKE_H_
#define TFCOLLECTIVE_TRANSPORT_TCP_HANDSHAKE_H_

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

inline constexpr double kHandshakeSeconds = 5;  // a stranger may keep a descriptor that long

enum class Purpose : uint16_t { kControl = 1, kData = 2 };

// What the connecting rank says about itself.
struct Hello {
  Purpose purpose = Purpose::kData;
  uint64_t generation = 0;
  int32_t sender = 0;    // rank that connects
  int32_t receiver = 0;  // rank that it wants to reach
};

// What the listening rank accepts.
struct Identity {
  int32_t rank = 0;
  int32_t size = 1;
  uint64_t generation = 0;
};

// What a handshake waits for.
enum class HandshakeWants { kRead, kWrite, kNothing };  // kNothing: it has ended well

namespace handshake_internal {

// Bytes on their way in or out of one fixed-size frame.
struct Buffer {
  std::array<uint8_t, 128> bytes = {};
  size_t size = 0;  // of the frame
  size_t done = 0;  // already moved
};

}  // namespace handshake_internal

// The listening side of one connection. Fails with PROTOCOL (garbage, wrong key, wrong generation or
// rank), DEADLINE_EXCEEDED or IO; the message says who and why, for the log. Then just destroy it.
class ServerHandshake {
 public:
  ServerHandshake(UniqueFd fd, const SocketAddress& from, const JobKey& key, const Identity& self, Deadline deadline);

  int fd() const { return fd_.get(); }  // borrowed
  Deadline deadline() const { return deadline_; }
  // Goes as far as it can without blocking. Call again when the descriptor is ready, or when the
  // deadline has passed.
  Result<HandshakeWants> Advance();
  // Once Advance has returned kNothing: who it is, and the connection.
  const Hello& hello() const { return hello_; }
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  enum class State { kReadHello, kWriteChallenge, kReadProof, kWriteVerdict, kDone };

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
  Deadline deadline_;
  State state_ = State::kReadHello;
  handshake_internal::Buffer buffer_;
  std::vector<uint8_t> transcript_;  // frames said so far
  Hello hello_;
  uint32_t verdict_ = 0;  // handshake_internal::Verdict
};

// The connecting side. Fails with PEER_LOST (nobody there, connection ended), DEADLINE_EXCEEDED,
// PROTOCOL (the other side has another key or refused us) or IO; all name the receiver's rank.
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
  enum class State { kConnect, kWriteHello, kReadChallenge, kWriteProof, kReadVerdict, kDone };

  ClientHandshake(UniqueFd fd, const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline);
  Result<HandshakeWants> Step();
  Result<HandshakeWants> FinishConnect();
  Result<HandshakeWants> Read();
  Result<HandshakeWants> Write();
  Status SayHello();
  Status AnswerChallenge();
  Status ObeyVerdict();
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

// Connects and shakes hands; blocks at most until the deadline. Does not try again: a listener exists
// before its address is published, so a refusal means that the process is gone. Ends early with
// CANCELLED when `cancel_fd` (-1: none) becomes readable; it is not read.
Result<UniqueFd> Connect(const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline,
                         int cancel_fd);

}  // namespace tfc

#endif  // TFCOLLECTIVE_TRANSPORT_TCP_HANDSHAKE_H_
