// The messages of the control connections, those of agreement/messages.h among them.
#ifndef TFCOLLECTIVE_EXECUTOR_MESSAGES_H_
#define TFCOLLECTIVE_EXECUTOR_MESSAGES_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "agreement/messages.h"
#include "base/dtype.h"
#include "base/status.h"
#include "control/control_connections.h"
#include "control/failure_arbiter.h"
#include "control/wire.h"
#include "executor/joining.h"

namespace tfc {

enum class Message : uint8_t {
  kReady = 1,              // -> 0: a Status: I have come to it, and what speaks against going on as planned
  kGo = 2,                 // 0 -> all: a Go: all have
  kRequest = 3,            // -> 0: a Request
  kDecision = 4,           // 0 -> all: a Decision
  kAbort = 5,              // -> 0: a failure that all ranks must see
  kFailed = 6,             // 0 -> all: it
  kTrouble = 7,            // -> 0: an Observation: my operation takes long, has timed out or is not that of my peers
  kViewQuery = 8,          // 0 -> all: a Place: what do you do there?
  kView = 9,               // -> 0: a View
  kLeave = 10,             // -> 0: a Progress: I am done
  kLeft = 11,              // 0 -> all: a Left; only if it says something new, see Frontier
  kStandstill = 12,        // -> 0: a Standstill: for a while I have done nothing but wait; or I go on
  kJoin = 13,              // -> 0: a Progress: I have no more data
  kJoined = 14,            // 0 -> all: RanksByProgress
  kNoted = 15,             // -> 0: I know of them
  kMissing = 16,           // -> 0: a ZeroContribution: I run this, and joined ranks are missing from it
  kZeroContribution = 17,  // 0 -> joined ranks: it
  kAllJoined = 18,         // 0 -> all: an AllJoined
  kStandstillQuery = 19,   // 0 -> all: true: do you still stand still?
  kJoinTimeout = 20,       // -> 0: seconds: my join has timed out; who has not joined?
  kForget = 21,            // -> 0: name of a plan that I no longer need
  kFreed = 22,             // 0 -> all: a Freed: no plan uses its channel any longer
};

// That all ranks have come to a point of the set-up.
struct Go {
  bool probe = false;  // measure the link first
  Status objection;    // of the first rank that has one
};

struct Left {
  int rank = 0;
  Progress progress;
};

struct AllJoined {
  int last_rank = 0;
};

struct Freed {
  uint32_t channel = 0;
};

// Joins as they travel: most ranks have done the same when they join, so each progress is written once.
using RanksByProgress = std::map<Progress, std::vector<int>>;
RanksByProgress Grouped(const Joins& joins);

inline bool IsValid(Collective collective) { return collective <= Collective::kBarrier; }
inline bool IsValid(Dtype dtype) { return IsDtype(static_cast<int>(dtype)); }
inline bool IsValid(Op op) { return IsOp(static_cast<int>(op)); }
// True for the events that a rank reports to rank 0; it decides the others itself.
inline bool IsValid(FailureArbiter::Event event) { return event <= FailureArbiter::Event::kMismatch; }

inline auto FieldsOf(const Go*) { return std::make_tuple(&Go::probe, &Go::objection); }
inline auto FieldsOf(const Place*) { return std::make_tuple(&Place::channel, &Place::sequence); }
inline auto FieldsOf(const FailureArbiter::View*) {
  using View = FailureArbiter::View;
  return std::make_tuple(&View::place, &View::text, &View::instead, &View::signature);
}
inline auto FieldsOf(const FailureArbiter::Observation*) {
  using Observation = FailureArbiter::Observation;
  return std::make_tuple(&Observation::event, &Observation::place, &Observation::status);
}
inline auto FieldsOf(const Left*) { return std::make_tuple(&Left::rank, &Left::progress); }
inline auto FieldsOf(const AllJoined*) { return std::make_tuple(&AllJoined::last_rank); }
inline auto FieldsOf(const Freed*) { return std::make_tuple(&Freed::channel); }
inline auto FieldsOf(const Operation*) {
  return std::make_tuple(&Operation::collective, &Operation::dtype, &Operation::op, &Operation::prescale,
                         &Operation::postscale, &Operation::timeout_s, &Operation::name, &Operation::shape);
}
inline auto FieldsOf(const ZeroContribution*) {
  using Zeros = ZeroContribution;
  return std::make_tuple(&Zeros::channel, &Zeros::sequence, &Zeros::operation, &Zeros::bytes);
}

// PROTOCOL for what only rank 0 receives, at another rank, and for what only rank 0 sends, from another rank.
Status CheckDirection(Message type, int from, int self);

// PROTOCOL for a message about a rank or a channel that a world of this size does not have: nothing is looked up by it.
template <typename Message>
Status Check(const Message&, int /*world_size*/) {
  return Status::Ok();
}
Status Check(const Decision& decision, int world_size);
Status Check(const Left& left, int world_size);
Status Check(const AllJoined& all, int world_size);
Status Check(const RanksByProgress& joins, int world_size);
Status Check(const Freed& freed, int world_size);
Status Check(const ZeroContribution& contribution, int world_size);

template <typename Message>
Status DecodeAndCheck(const std::string& bytes, int world_size, Message* message) {
  TFC_RETURN_IF_ERROR(Decode(bytes, message));
  return Check(*message, world_size);
}

// `to`: a rank, or several.
template <typename To, typename Body>
void Send(ControlConnections* control, const To& to, Message type, const Body& body) {
  control->Send(to, static_cast<uint8_t>(type), Encode(body));
}
template <typename Body>
void SendToAll(ControlConnections* control, Message type, const Body& body) {
  control->SendToAll(static_cast<uint8_t>(type), Encode(body));
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_MESSAGES_H_
