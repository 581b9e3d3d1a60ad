#include "control/failure_arbiter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/rank_texts.h"
#include "control/timing.h"

namespace tfc {
namespace {

using State = FailureArbiter::State;
using Event = FailureArbiter::Event;
using Kind = FailureArbiter::Action::Kind;

constexpr uint32_t Bit(State state) { return 1u << static_cast<uint32_t>(state); }
constexpr uint32_t Bit(Event event) { return 1u << static_cast<uint32_t>(event); }

constexpr uint32_t kCalm = Bit(State::kCalm);
constexpr uint32_t kAwaitingCause = Bit(State::kAwaitingCause);
constexpr uint32_t kAwaitingRoot = Bit(State::kAwaitingRoot);
constexpr uint32_t kWarning = Bit(State::kAskingForWarning);
constexpr uint32_t kAsking = Bit(State::kAskingForTimeout) | Bit(State::kAskingForMismatch);
constexpr uint32_t kFailed = Bit(State::kFailed);
constexpr uint32_t kUndecided = kCalm | kAwaitingCause | kAwaitingRoot | kWarning | kAsking;

constexpr uint32_t kRoot = 1;
constexpr uint32_t kOthers = 2;
constexpr uint32_t kAll = kRoot | kOthers;

}  // namespace

// At these ranks, in one of these states, one of these events leads to an action and, unless it stays, a state. What
// is not in the table changes nothing: a failure that is on its way, or decided, is not replaced by a later one.
struct FailureArbiter::Row {
  uint32_t ranks;
  uint32_t states;
  uint32_t events;
  Kind action;
  std::optional<State> next;
  double seconds = 0;  // until kDue; 0: never
};

const FailureArbiter::Row FailureArbiter::kTable[] = {
    // An operation takes long. What ends in an error does not wait for what ends in a warning.
    {kOthers, kUndecided, Bit(Event::kSlow), Kind::kAskRoot, {}},
    {kRoot, kCalm, Bit(Event::kSlow), Kind::kAskViews, State::kAskingForWarning, timing::kViews},
    {kRoot, kUndecided & ~kCalm, Bit(Event::kSlow), Kind::kWarn, {}},
    {kRoot, kWarning, Bit(Event::kAnswered) | Bit(Event::kDue), Kind::kWarn, State::kCalm},

    // An operation has timed out, or the ranks disagree on it. If rank 0 does not answer, that is the answer. Rank 0
    // asks for others even if it has failed itself.
    {kOthers, kCalm, Bit(Event::kTimeout) | Bit(Event::kMismatch), Kind::kAskRoot, State::kAwaitingRoot,
     timing::kRootAnswer},
    {kOthers, kAwaitingRoot, Bit(Event::kDue), Kind::kFailEverywhere, State::kFailed},
    {kRoot, kCalm | kWarning | kFailed, Bit(Event::kTimeout), Kind::kAskViews, State::kAskingForTimeout,
     timing::kViews},
    // A mismatch is also what a connection breaks of: the rank that has found it ends its connections.
    {kRoot, kCalm | kWarning | kAwaitingCause | kFailed, Bit(Event::kMismatch), Kind::kAskViews,
     State::kAskingForMismatch, timing::kViews},
    {kRoot, kAsking, Bit(Event::kAnswered) | Bit(Event::kDue), Kind::kFailEverywhere, State::kFailed},

    // A connection broke: usually because of a failure whose news is on its way.
    // Rank 0 has the last word; where it does not answer, the peer may have ended because rank 0 is lost.
    {kAll, kCalm | kWarning, Bit(Event::kBroken), Kind::kNone, State::kAwaitingCause, timing::kCause},
    {kRoot, kAwaitingCause, Bit(Event::kDue), Kind::kFailEverywhere, State::kFailed},
    {kOthers, kAwaitingCause, Bit(Event::kDue), Kind::kReport, State::kAwaitingRoot, timing::kRootAnswer},

    // Failures that need no question. Only rank 0 sees every connection, so only it reports a rank that is lost.
    {kAll, kUndecided, Bit(Event::kFault), Kind::kFailEverywhere, State::kFailed},
    {kRoot, kUndecided | kFailed, Bit(Event::kLost), Kind::kFailEverywhere, State::kFailed},
    {kOthers, kUndecided, Bit(Event::kLost) | Bit(Event::kDecision), Kind::kFailHere, State::kFailed},
    {kRoot, kAsking, Bit(Event::kBlocked), Kind::kFailHere, {}},  // rank 0 goes on asking for others
    {kAll, kUndecided, Bit(Event::kBlocked), Kind::kFailHere, State::kFailed},

    // The first report decides. It reaches rank 0 as it reaches the others.
    {kRoot, kUndecided | kFailed, Bit(Event::kReport), Kind::kSendAll, State::kDecided},
    {kRoot, Bit(State::kDecided), Bit(Event::kDecision), Kind::kFailHere, {}},

    // Rank 0 goes on asking for others.
    {kOthers, kUndecided, Bit(Event::kFailedHere), Kind::kNone, State::kFailed},
    {kRoot, kCalm | kAwaitingCause, Bit(Event::kFailedHere), Kind::kNone, State::kFailed},
};

FailureArbiter::Event FailureArbiter::EventOf(const Status& error) {
  switch (error.code()) {
    case Code::kMismatch:
      return Event::kMismatch;
    case Code::kDeadlineExceeded:
      return Event::kTimeout;
    case Code::kPeerLost:
    case Code::kIo:
      return Event::kBroken;
    default:
      return Event::kFault;
  }
}

FailureArbiter::Action FailureArbiter::On(const Observation& seen, Time now) {
  if (rank_ == 0 && seen.event == Event::kSlow && !IsNewlySlow(seen.place)) return {};
  const uint32_t here = rank_ == 0 ? kRoot : kOthers;
  for (const Row& row : kTable)
    if ((row.ranks & here) != 0 && (row.states & Bit(state_)) != 0 && (row.events & Bit(seen.event)) != 0)
      return Enter(row, seen, now);
  return {};
}

FailureArbiter::Action FailureArbiter::Enter(const Row& row, const Observation& seen, Time now) {
  // What was waited for, if this ends the wait, and else what has just been seen.
  const bool ends_wait = seen.event == Event::kAnswered || seen.event == Event::kDue;
  Action action{row.action, seen.event, seen.place, ends_wait ? Decision() : seen.status};
  if (row.action == Kind::kSendAll && seen.rank > 0 && seen.status.code() != Code::kAborted)
    action.status = seen.status.WithContext("rank " + std::to_string(seen.rank));
  // This rank's own abort comes back: the caller has a better word for it.
  if (seen.event == Event::kDecision && seen.status.code() == Code::kAborted && seen.status.peer() == rank_)
    action.kind = Kind::kNone;
  if (!row.next) return action;
  state_ = *row.next;
  due_ = row.seconds > 0 ? std::optional<Time>(now + Deadline::Seconds(row.seconds)) : std::nullopt;
  if (!ends_wait) trouble_ = seen;
  views_.clear();
  to_come_ = 0;
  return action;
}

FailureArbiter::Action FailureArbiter::OnView(int from, View view) {
  const bool asking = state_ == State::kAskingForWarning || (Bit(state_) & kAsking) != 0;
  if (!asking || !(view.place == trouble_.place)) return {};
  const auto [known, is_new] = views_.try_emplace(from);
  if (!is_new && known->second.text.empty()) --to_come_;
  if (view.text.empty()) ++to_come_;
  known->second = std::move(view);
  const bool all_answered = static_cast<int>(views_.size()) == size_;
  // A rank that comes to the operation soon shows what it does there; only a mismatch waits for that.
  if (!all_answered || (to_come_ > 0 && state_ == State::kAskingForMismatch)) return {};
  return On(Observation{Event::kAnswered, {}, {}, kNoPeer}, Time());
}

FailureArbiter::Action FailureArbiter::OnTime(Time now) {
  if (!due_ || now < *due_) return {};
  return On(Observation{Event::kDue, {}, {}, kNoPeer}, now);
}

// One warning for all ranks that wait in the operation.
bool FailureArbiter::IsNewlySlow(const Place& place) {
  const auto [known, is_new] = slow_.try_emplace(place.channel, place.sequence);
  if (!is_new && known->second >= place.sequence) return false;
  known->second = place.sequence;
  return true;
}

// How what was waited for ends.
Status FailureArbiter::Decision() const {
  const Status& seen = trouble_.status;
  switch (state_) {
    case State::kAskingForWarning:
    case State::kAskingForTimeout:
      return RanksDisagree() ? WhoDisagrees() : WhoIsMissing();
    case State::kAskingForMismatch:
      return WhoDisagrees();
    case State::kAwaitingRoot:
      if (trouble_.event == Event::kMismatch || (trouble_.event == Event::kBroken && seen.peer() == 0)) return seen;
      return Status(seen.code(), seen.message() + "; and rank 0 does not answer: it is stopped, overloaded or cut off",
                    trouble_.event == Event::kBroken ? seen.peer() : 0);
    default:
      return seen;
  }
}

// Ranks whose messages do not meet, such as those of an all-reduce and of a barrier over connections, only wait.
bool FailureArbiter::RanksDisagree() const {
  uint64_t known = 0;
  for (const auto& [rank, view] : views_) {
    if (view.signature == 0) continue;
    if (known != 0 && view.signature != known) return true;
    known = view.signature;
  }
  return false;
}

// The trouble in the words of the rank that saw it, and the ranks that it really waits for.
Status FailureArbiter::WhoIsMissing() const {
  std::vector<int> silent, elsewhere;
  for (int rank = 0; rank < size_; ++rank) {
    const auto view = views_.find(rank);
    if (view == views_.end()) {
      silent.push_back(rank);
    } else if (view->second.text.empty() && !view->second.excused) {
      elsewhere.push_back(rank);
    }
  }
  std::string text = trouble_.status.message();
  int culprit = trouble_.status.peer();
  if (!elsewhere.empty()) {
    text += "; " + RankList(elsewhere) + (elsewhere.size() == 1 ? " has" : " have") + " not called it";
    culprit = elsewhere.front();
    const auto busy =
        std::find_if(elsewhere.begin(), elsewhere.end(), [this](int rank) { return !views_.at(rank).instead.empty(); });
    if (busy != elsewhere.end())
      text += "; rank " + std::to_string(*busy) + " waits in " + views_.at(*busy).instead +
              ": do all ranks make the same steps, and as many of them?";
  }
  if (!silent.empty()) {
    text += "; " + RankList(silent) + (silent.size() == 1 ? " does" : " do") +
            " not answer: stopped, overloaded or cut off";
    culprit = silent.front();
  }
  return Status(Code::kDeadlineExceeded, text, culprit);
}

Status FailureArbiter::WhoDisagrees() const {
  std::map<int, std::string> texts;
  for (int rank = 0; rank < size_; ++rank) {
    const auto view = views_.find(rank);
    const bool came = view != views_.end() && !view->second.text.empty();
    texts[rank] = came ? view->second.text : "has called nothing yet";
  }
  return Status(Code::kMismatch, "the ranks disagree on collective number " +
                                     std::to_string(trouble_.place.sequence + 1) + ": " + CompareViews(texts));
}

}  // namespace tfc
