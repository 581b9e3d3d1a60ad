// The messages of the control connections; those of agreement/messages.h look as they say there.
#ifndef TFCOLLECTIVE_EXECUTOR_MESSAGES_H_
#define TFCOLLECTIVE_EXECUTOR_MESSAGES_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "control/failure_arbiter.h"
#include "executor/joining.h"
#include "executor/watch.h"

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
  kLeft = 11,              // 0 -> all: rank, Progress; only if it says something new, see Frontier
  kJoin = 13,              // -> 0: a Progress: I have no more data
  kJoined = 14,            // 0 -> all: Joins
  kNoted = 15,             // -> 0: I know of them
  kMissing = 16,           // -> 0: a ZeroContribution: I run this, and joined ranks are missing from it
  kZeroContribution = 17,  // 0 -> joined ranks: it
  kAllJoined = 18,         // 0 -> all: the rank that joined last
  kJoinTimeout = 20,       // -> 0: seconds: my join has timed out; who has not joined?
  kForget = 21,            // -> 0: name of a plan that I no longer need
  kFreed = 22,             // 0 -> all: a channel that no plan uses any longer
};

// That all ranks have come to a point of the set-up.
struct Go {
  bool probe = false;  // measure the link first
  Status objection;    // of the first rank that has one
};

std::string Encode(const Go& go);
std::string Encode(const Status& status);
std::string Encode(const Progress& progress);
std::string Encode(const ZeroContribution& contribution);
std::string Encode(const Place& place);
std::string Encode(const FailureArbiter::View& view);  // without `excused`
// Of kSlow, kTimeout and kMismatch only, without the rank.
std::string Encode(const FailureArbiter::Observation& trouble);
std::string EncodeRank(int rank);
std::string EncodeChannel(uint32_t channel);
std::string EncodeLeft(int rank, const Progress& progress);
std::string Encode(const Joins& joins);
std::string EncodeSeconds(double seconds);

// Each gives PROTOCOL for bytes that are no such message.
Status Decode(const std::string& bytes, Go* go);
Status Decode(const std::string& bytes, Status* status);
Status Decode(const std::string& bytes, Progress* progress);
Status Decode(const std::string& bytes, ZeroContribution* contribution);
Status DecodeRank(const std::string& bytes, int* rank);
Status DecodeChannel(const std::string& bytes, uint32_t* channel);
Status Decode(const std::string& bytes, Place* place);
Status Decode(const std::string& bytes, FailureArbiter::View* view);
Status Decode(const std::string& bytes, FailureArbiter::Observation* trouble);
Status DecodeLeft(const std::string& bytes, int* rank, Progress* progress);
Status Decode(const std::string& bytes, Joins* joins);
Status DecodeSeconds(const std::string& bytes, double* seconds);

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_MESSAGES_H_
