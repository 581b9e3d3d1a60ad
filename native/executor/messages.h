// The messages of the control star and how a request and a verdict look on it.
#ifndef TFCOLLECTIVE_EXECUTOR_MESSAGES_H_
#define TFCOLLECTIVE_EXECUTOR_MESSAGES_H_

#include <cstdint>
#include <string>

#include "agreement/negotiation.h"
#include "base/status.h"
#include "executor/joining.h"
#include "executor/watch.h"

namespace tfc {

enum class Message : uint8_t {
  kReady = 1,         // -> 0: a Status: I have come to it, and what speaks against going on as planned
  kGo = 2,            // 0 -> all: a Go: all have
  kRequest = 3,       // -> 0: a Request
  kVerdict = 4,       // 0 -> all: a Verdict
  kAbort = 5,         // -> 0: a failure that all ranks must see
  kFailed = 6,        // 0 -> all: it
  kDispute = 7,       // -> 0: channel, sequence: the peers do something else there
  kViewQuery = 8,     // 0 -> all: channel, sequence: what do you do there?
  kView = 9,          // -> 0: channel, sequence, text: empty while I have not come to it
  kLeave = 10,        // -> 0: a Progress: I am done
  kLeft = 11,         // 0 -> all: rank, Progress; only if it says something new, see Frontier
  kTimeout = 12,      // -> 0: channel, sequence, failure: my operation has timed out; who is missing?
  kJoin = 13,         // -> 0: a Progress: I have no more data
  kJoined = 14,       // 0 -> all: Joins
  kNoted = 15,        // -> 0: I know of them
  kMissing = 16,      // -> 0: a StandIn: I run this, and joined ranks are missing from it
  kStandIn = 17,      // 0 -> joined ranks: it
  kAllJoined = 18,    // 0 -> all: the rank that joined last
  kNote = 19,         // what a room above the engine tells itself on other ranks; see NoteHandler
  kJoinTimeout = 20,  // -> 0: seconds: my join has timed out; who has not joined?
  kForget = 21,       // -> 0: name of a plan that I no longer need
  kFreed = 22,        // 0 -> all: a channel that no plan uses any longer
  kStalled = 23,      // -> 0: channel, sequence, warning: my operation takes long; who is missing?
};

// That all ranks have come to a point of the set-up.
struct Go {
  bool probe = false;  // measure the link first
  Status objection;    // of the first rank that has one
};

std::string Encode(const Go& go);
std::string Encode(const Request& request);
std::string Encode(const Verdict& verdict);
std::string Encode(const Status& status);
std::string Encode(const Progress& progress);
std::string Encode(const StandIn& stand_in);
std::string EncodePlace(uint32_t channel, uint64_t sequence);
// `view` is empty where the rank has not come to the operation; `instead` is what it waits in then, if anything.
std::string EncodeView(uint32_t channel, uint64_t sequence, const std::string& view, const std::string& instead = "");
std::string EncodeTimeout(uint32_t channel, uint64_t sequence, const Status& status);
std::string EncodeRank(int rank);
std::string EncodeChannel(uint32_t channel);
std::string EncodeLeft(int rank, const Progress& progress);
std::string Encode(const Joins& joins);
std::string EncodeSeconds(double seconds);

// Each gives PROTOCOL for bytes that are no such message.
Status Decode(const std::string& bytes, Go* go);
Status Decode(const std::string& bytes, Request* request);
Status Decode(const std::string& bytes, Verdict* verdict);
Status Decode(const std::string& bytes, Status* status);
Status Decode(const std::string& bytes, Progress* progress);
Status Decode(const std::string& bytes, StandIn* stand_in);
Status DecodeRank(const std::string& bytes, int* rank);
Status DecodeChannel(const std::string& bytes, uint32_t* channel);
Status DecodePlace(const std::string& bytes, uint32_t* channel, uint64_t* sequence);
Status DecodeView(const std::string& bytes, uint32_t* channel, uint64_t* sequence, std::string* view,
                  std::string* instead);
Status DecodeTimeout(const std::string& bytes, uint32_t* channel, uint64_t* sequence, Status* status);
Status DecodeLeft(const std::string& bytes, int* rank, Progress* progress);
Status Decode(const std::string& bytes, Joins* joins);
Status DecodeSeconds(const std::string& bytes, double* seconds);

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_MESSAGES_H_
