// The bytes of the handshake: layouts, proofs, and moving one fixed-size frame without blocking.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_HANDSHAKE_FRAMES_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_HANDSHAKE_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "collectives/transport/tcp/handshake.h"

namespace tfc::handshake_internal {

inline constexpr uint64_t kMagic = 0x656b616873434654;  // "TFCshake" in memory, on a little-endian machine
inline constexpr uint16_t kVersion = 1;

enum class Kind : uint16_t { kHello = 1, kChallenge = 2, kProof = 3, kDecision = 4 };

struct Header {
  uint64_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;
  uint32_t body_size = 0;
};

struct HelloBody {
  uint16_t purpose = 0;
  uint16_t reserved16 = 0;
  int32_t sender = 0;
  int32_t receiver = 0;
  uint32_t reserved32 = 0;
  uint64_t generation = 0;
  std::array<uint8_t, 32> nonce = {};
};

struct ChallengeBody {
  std::array<uint8_t, 32> nonce = {};
  Digest proof = {};
};

struct ProofBody {
  Digest proof = {};
};

enum class Decision : uint32_t {
  kAccepted = 1,
  kWrongGeneration = 2,
  kWrongReceiver = 3,
  kWrongSender = 4,
  kWrongPurpose = 5
};

struct DecisionBody {
  uint32_t decision = 0;
  uint32_t reserved = 0;
  Digest proof = {};
};

static_assert(sizeof(Header) == 16 && sizeof(HelloBody) == 56, "frames have no padding");
static_assert(sizeof(ChallengeBody) == 64 && sizeof(ProofBody) == 32 && sizeof(DecisionBody) == 40, "nor have these");

const char* DecisionText(Decision decision);  // "the generation is another one"

// Sets `buffer` up to send or to receive one frame.
template <typename Body>
void Expect(Buffer* buffer) {
  static_assert(sizeof(Header) + sizeof(Body) <= sizeof(buffer->bytes));
  buffer->size = sizeof(Header) + sizeof(Body);
  buffer->done = 0;
}

template <typename Body>
void Encode(Kind kind, const Body& body, Buffer* buffer) {
  Expect<Body>(buffer);
  Header header;
  header.kind = static_cast<uint16_t>(kind);
  header.body_size = sizeof(Body);
  std::memcpy(buffer->bytes.data(), &header, sizeof(header));
  std::memcpy(buffer->bytes.data() + sizeof(header), &body, sizeof(body));
}

template <typename Body>
Body Decode(const Buffer& buffer) {
  Body body;
  std::memcpy(&body, buffer.bytes.data() + sizeof(Header), sizeof(body));
  return body;
}

void Append(const Buffer& buffer, std::vector<uint8_t>* transcript);

// HMAC over the label, everything said so far and one more piece.
Digest Prove(const JobKey& key, const char* label, const std::vector<uint8_t>& transcript, const void* more,
             size_t more_size);

enum class Moved { kAll, kBlocked };

// Moves what the socket takes or has. Errors: PEER_LOST (the stream ended), IO, PROTOCOL (a header
// other than the expected one, found before its body is read).
Result<Moved> Read(int fd, Kind kind, Buffer* buffer);
Result<Moved> Write(int fd, Buffer* buffer);

// True if the bytes that Read has refused are the header of another version of the protocol.
bool IsOtherVersion(const Buffer& buffer);
// The header of an answer without a body: a peer of any version learns this one's from it.
void SayVersion(int fd);

}  // namespace tfc::handshake_internal

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_HANDSHAKE_FRAMES_H_
