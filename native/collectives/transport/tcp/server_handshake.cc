#include <cstddef>

#include "collectives/transport/tcp/handshake.h"
#include "collectives/transport/tcp/handshake_frames.h"

namespace tfc {

namespace hs = handshake_internal;

ServerHandshake::ServerHandshake(UniqueFd fd, const SocketAddress& from, const JobKey& key, const Identity& self)
    : fd_(std::move(fd)), from_(from), key_(key), self_(self) {
  hs::Expect<hs::HelloBody>(&buffer_);
}

Result<HandshakeWants> ServerHandshake::Advance() {
  Result<HandshakeWants> wants = Step();
  return wants.ok() ? wants : Refusal(wants.status());
}

Result<HandshakeWants> ServerHandshake::Step() {
  while (state_ != State::kDone) {
    const bool reading = state_ == State::kReadHello || state_ == State::kReadProof;
    Result<HandshakeWants> wants = reading ? Read() : Write();
    if (!wants.ok() || wants.value() != HandshakeWants::kNothing) return wants;
  }
  return HandshakeWants::kNothing;
}

Result<HandshakeWants> ServerHandshake::Read() {
  const bool first = state_ == State::kReadHello;
  Result<hs::Moved> moved = hs::Read(fd_.get(), first ? hs::Kind::kHello : hs::Kind::kProof, &buffer_);
  // Else the peer would see nothing but the end of the connection, and make it again.
  if (!moved.ok() && first && hs::IsOtherVersion(buffer_)) hs::SayVersion(fd_.get());
  if (!moved.ok()) return moved.status();
  if (moved.value() == hs::Moved::kBlocked) return HandshakeWants::kRead;
  TFC_RETURN_IF_ERROR(first ? AnswerHello() : AnswerProof());
  state_ = first ? State::kWriteChallenge : State::kWriteDecision;
  return HandshakeWants::kNothing;
}

Result<HandshakeWants> ServerHandshake::Write() {
  Result<hs::Moved> moved = hs::Write(fd_.get(), &buffer_);
  if (!moved.ok()) return moved.status();
  if (moved.value() == hs::Moved::kBlocked) return HandshakeWants::kWrite;
  if (state_ == State::kWriteChallenge) {
    hs::Expect<hs::ProofBody>(&buffer_);
    state_ = State::kReadProof;
    return HandshakeWants::kNothing;
  }
  const auto decision = static_cast<hs::Decision>(decision_);
  if (decision != hs::Decision::kAccepted) {
    return Status(Code::kProtocol, std::string("it has the job key, but ") + hs::DecisionText(decision) + " (rank " +
                                       std::to_string(hello_.sender) + " of generation " +
                                       std::to_string(hello_.generation) + " to rank " +
                                       std::to_string(hello_.receiver) + ")");
  }
  state_ = State::kDone;
  return HandshakeWants::kNothing;
}

Status ServerHandshake::AnswerHello() {
  const auto body = hs::Decode<hs::HelloBody>(buffer_);
  hello_ = Hello{static_cast<Purpose>(body.purpose), body.generation, body.sender, body.receiver};
  hs::Append(buffer_, &transcript_);
  hs::ChallengeBody challenge;
  TFC_RETURN_IF_ERROR(FillRandom(challenge.nonce.data(), challenge.nonce.size()));
  challenge.proof = hs::Prove(key_, "server", transcript_, challenge.nonce.data(), challenge.nonce.size());
  hs::Encode(hs::Kind::kChallenge, challenge, &buffer_);
  hs::Append(buffer_, &transcript_);
  return Status::Ok();
}

// What the peer said about itself is looked at only here, when it has proved that it may say it.
Status ServerHandshake::AnswerProof() {
  const Digest expected = hs::Prove(key_, "client", transcript_, nullptr, 0);
  if (!ConstantTimeEqual(hs::Decode<hs::ProofBody>(buffer_).proof, expected)) {
    return Status(Code::kProtocol, "it does not have the job key");
  }
  hs::Append(buffer_, &transcript_);
  decision_ = Judge();
  hs::DecisionBody body;
  body.decision = decision_;
  body.proof = hs::Prove(key_, "decision", transcript_, &body.decision, sizeof(body.decision));
  hs::Encode(hs::Kind::kDecision, body, &buffer_);
  return Status::Ok();
}

uint32_t ServerHandshake::Judge() const {
  hs::Decision decision = hs::Decision::kAccepted;
  if (hello_.purpose != Purpose::kControl && hello_.purpose != Purpose::kData) decision = hs::Decision::kWrongPurpose;
  const bool sender_in_world = hello_.sender >= 0 && hello_.sender < self_.size && hello_.sender != self_.rank;
  if (!sender_in_world) decision = hs::Decision::kWrongSender;
  if (hello_.receiver != self_.rank) decision = hs::Decision::kWrongReceiver;
  if (hello_.generation != self_.generation) decision = hs::Decision::kWrongGeneration;
  return static_cast<uint32_t>(decision);
}

}  // namespace tfc
