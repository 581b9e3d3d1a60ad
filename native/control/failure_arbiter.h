// Decides how a communicator fails: what a rank does when one of its operations goes wrong, when a peer is lost, and
// when other ranks have trouble. Pure: no I/O, no thread, no clock; events and the time go in, actions come out. The
// transitions stand in one table, in failure_arbiter.cc.
//
// Rank 0 decides for all: the first failure that reaches it is what all ranks are sent. Of a timeout or a mismatch a
// rank sees only its own half, so rank 0 first asks all ranks for their view of the operation. A rank that rank 0 does
// not answer says so in its own failure.
#ifndef TFCOLLECTIVE_CONTROL_FAILURE_ARBITER_H_
#define TFCOLLECTIVE_CONTROL_FAILURE_ARBITER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/status.h"

namespace tfc {

// Which operation: its channel, and its number there.
struct Place {
  uint32_t channel = 0;
  uint64_t sequence = 0;
  bool operator==(const Place& other) const { return channel == other.channel && sequence == other.sequence; }
};

class FailureArbiter {
 public:
  using Time = Deadline::Clock::time_point;

  enum class State : uint8_t {
    kCalm,               // nothing has failed
    kAwaitingCause,      // a connection broke, and the reason may be on its way
    kAwaitingRoot,       // rank 0 has been asked; not at rank 0
    kAskingForWarning,   // rank 0 has asked for views, because an operation takes long
    kAskingForTimeout,   // because one has timed out
    kAskingForMismatch,  // because the ranks disagree on one
    kFailed,             // this rank has failed; at rank 0: and the others may not know
    kDecided,            // rank 0 has sent all ranks the failure
  };

  enum class Event : uint8_t {
    // An operation of this rank, or, at rank 0, of any rank. With its place, and what that rank saw.
    kSlow,
    kTimeout,
    kMismatch,
    // An operation of this rank.
    kBroken,  // a connection broke
    kFault,   // anything else
    // Peers.
    kLost,      // a rank's control connection ended though the rank had not left
    kBlocked,   // a rank left that this rank needs; the others notice that themselves
    kReport,    // at rank 0: a rank has failed, and all ranks must
    kDecision,  // rank 0 has sent this rank the failure
    // This rank has failed for a reason that the arbiter was not asked about.
    kFailedHere,
    // Of the arbiter itself.
    kAnswered,  // all views are there
    kDue,       // the time is over
  };

  struct Observation {
    Event event = Event::kFault;
    Status status = {};
    Place place = {};
    int rank = kNoPeer;  // that reports it
  };

  // The state of a rank in an operation that rank 0 has asked about.
  struct View {
    Place place = {};
    std::string text = {};     // empty: it has not come to the operation
    std::string instead = {};  // then: what it waits in, if anything
    bool excused = false;      // then: it need not come
    uint64_t signature = 0;    // of the operation while it runs: the same on all ranks, or they disagree
  };

  // The actions that the engine takes now.
  struct Action {
    enum class Kind : uint8_t {
      kNone,
      kAskRoot,         // send rank 0 what `about` says
      kAskViews,        // ask all ranks for their view of the operation at `place`
      kWarn,            // log the text
      kReport,          // report to rank 0
      kFailHere,        // end everything here
      kFailEverywhere,  // report to rank 0, and end everything here
      kSendAll,         // send all ranks, this one included, the decision
    };
    Kind kind = Kind::kNone;
    Event about = Event::kFault;
    Place place = {};
    Status status = {};
  };

  FailureArbiter(int rank, int size) : rank_(rank), size_(size) {}

  // Returns the event that corresponds to an operation's error.
  static Event EventOf(const Status& error);

  Action On(const Observation& seen, Time now);
  // At rank 0: a rank's answer. One that comes late, or that nothing has asked for, changes nothing.
  Action OnView(int from, View view);
  Action OnTime(Time now);
  // The time at which OnTime has something to do, if ever.
  std::optional<Time> due() const { return due_; }
  State state() const { return state_; }

 private:
  struct Row;
  static const Row kTable[];

  Action Enter(const Row& row, const Observation& seen, Time now);
  bool IsNewlySlow(const Place& place);
  Status Decision() const;
  bool RanksDisagree() const;
  Status WhoIsMissing() const;
  Status WhoDisagrees() const;

  const int rank_;
  const int size_;
  State state_ = State::kCalm;
  std::optional<Time> due_;
  Observation trouble_;                // what is waited or asked for
  std::map<int, View> views_;          // the answers
  int to_come_ = 0;                    // of them: how many have not come to the operation
  std::map<uint32_t, uint64_t> slow_;  // of each channel the last operation that all were asked about
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_CONTROL_FAILURE_ARBITER_H_
