#include "control/failure_arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/transport/tcp/ack_watch.h"
#include "control/timing.h"

namespace tfc {
namespace {

using Action = FailureArbiter::Action;
using Event = FailureArbiter::Event;
using Kind = FailureArbiter::Action::Kind;
using Observation = FailureArbiter::Observation;
using State = FailureArbiter::State;
using Time = FailureArbiter::Time;
using View = FailureArbiter::View;

constexpr int kSize = 3;
constexpr Place kPlace{4, 6};
constexpr Place kOtherPlace{4, 7};
const Time kBegin = Time() + std::chrono::hours(1);

Time After(double seconds) { return kBegin + Deadline::Seconds(seconds); }

Status Late() { return Status(Code::kDeadlineExceeded, "'w' timed out"); }

Observation Seen(Event event, Place place = kPlace) {
  return Observation{event, Status(Code::kIo, "seen", 1), place, 2};
}

FailureArbiter Rank(int rank) { return FailureArbiter(rank, kSize); }

// ---- the table ----------------------------------------------------------------------------------

// How each state is reached from calm.
FailureArbiter Brought(int rank, State state) {
  static const std::map<State, std::vector<Event>> kWays{
      {State::kCalm, {}},
      {State::kAwaitingCause, {Event::kBroken}},
      {State::kAwaitingRoot, {Event::kTimeout}},
      {State::kAskingForWarning, {Event::kSlow}},
      {State::kAskingForTimeout, {Event::kTimeout}},
      {State::kAskingForMismatch, {Event::kMismatch}},
      {State::kFailed, {Event::kFailedHere}},
      {State::kDecided, {Event::kReport}},
  };
  FailureArbiter arbiter = Rank(rank);
  for (const Event event : kWays.at(state)) arbiter.On(Seen(event), kBegin);
  EXPECT_EQ(arbiter.state(), state);
  return arbiter;
}

using Transitions = std::map<std::pair<State, Event>, std::pair<Kind, State>>;

constexpr Event kEvents[] = {Event::kSlow,     Event::kTimeout,    Event::kMismatch, Event::kBroken,
                             Event::kFault,    Event::kLost,       Event::kBlocked,  Event::kReport,
                             Event::kDecision, Event::kFailedHere, Event::kAnswered, Event::kDue};

// All of them, and that everything else changes nothing.
void ExpectTransitions(int rank, const std::vector<State>& states, const Transitions& expected) {
  for (const State state : states) {
    for (const Event event : kEvents) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", state " + std::to_string(static_cast<int>(state)) + ", event " +
                   std::to_string(static_cast<int>(event)));
      FailureArbiter arbiter = Brought(rank, state);
      const Action action = arbiter.On(Seen(event, kOtherPlace), After(0.1));
      const auto found = expected.find({state, event});
      const auto [kind, next] = found == expected.end() ? std::pair(Kind::kNone, state) : found->second;
      EXPECT_EQ(action.kind, kind);
      EXPECT_EQ(arbiter.state(), next);
      const bool waits = next != State::kCalm && next != State::kFailed && next != State::kDecided;
      EXPECT_EQ(arbiter.due().has_value(), waits);
    }
  }
}

TEST(FailureArbiterTest, OtherRanksFollowTheTable) {
  const auto kCalm = State::kCalm, kCause = State::kAwaitingCause, kRoot = State::kAwaitingRoot;
  const std::pair kAllFail(Kind::kFailEverywhere, State::kFailed), kThisFails(Kind::kFailHere, State::kFailed);
  Transitions expected{
      {{kCalm, Event::kTimeout}, {Kind::kAskRoot, kRoot}},
      {{kCalm, Event::kMismatch}, {Kind::kAskRoot, kRoot}},
      {{kCalm, Event::kBroken}, {Kind::kNone, kCause}},
      {{kCause, Event::kDue}, {Kind::kReport, kRoot}},
      {{kRoot, Event::kDue}, kAllFail},
  };
  for (const State state : {kCalm, kCause, kRoot}) {
    expected[{state, Event::kSlow}] = {Kind::kAskRoot, state};
    expected[{state, Event::kFault}] = kAllFail;
    expected[{state, Event::kLost}] = expected[{state, Event::kBlocked}] = kThisFails;
    expected[{state, Event::kDecision}] = kThisFails;
    expected[{state, Event::kFailedHere}] = {Kind::kNone, State::kFailed};
  }
  ExpectTransitions(1, {kCalm, kCause, kRoot, State::kFailed}, expected);
}

TEST(FailureArbiterTest, RankZeroFollowsTheTable) {
  const auto kCalm = State::kCalm, kCause = State::kAwaitingCause, kWarning = State::kAskingForWarning,
             kTimeout = State::kAskingForTimeout, kMismatch = State::kAskingForMismatch, kFailed = State::kFailed;
  const std::pair kAllFail(Kind::kFailEverywhere, kFailed);
  Transitions expected{
      {{kCalm, Event::kSlow}, {Kind::kAskViews, kWarning}},
      {{kWarning, Event::kAnswered}, {Kind::kWarn, kCalm}},
      {{kWarning, Event::kDue}, {Kind::kWarn, kCalm}},
      {{kTimeout, Event::kAnswered}, kAllFail},
      {{kTimeout, Event::kDue}, kAllFail},
      {{kMismatch, Event::kAnswered}, kAllFail},
      {{kMismatch, Event::kDue}, kAllFail},
      {{kCause, Event::kDue}, kAllFail},
      {{State::kDecided, Event::kDecision}, {Kind::kFailHere, State::kDecided}},
      {{kCalm, Event::kFailedHere}, {Kind::kNone, kFailed}},
      {{kCause, Event::kFailedHere}, {Kind::kNone, kFailed}},
  };
  for (const State state : {kCalm, kWarning, kFailed}) {
    expected[{state, Event::kTimeout}] = {Kind::kAskViews, kTimeout};
    expected[{state, Event::kMismatch}] = {Kind::kAskViews, kMismatch};
  }
  expected[{kCause, Event::kMismatch}] = {Kind::kAskViews, kMismatch};
  for (const State state : {kCalm, kWarning}) expected[{state, Event::kBroken}] = {Kind::kNone, kCause};
  for (const State state : {kCause, kWarning, kTimeout, kMismatch})
    expected[{state, Event::kSlow}] = {Kind::kWarn, state};
  for (const State state : {kTimeout, kMismatch}) expected[{state, Event::kBlocked}] = {Kind::kFailHere, state};
  for (const State state : {kCalm, kCause, kWarning}) expected[{state, Event::kBlocked}] = {Kind::kFailHere, kFailed};
  for (const State state : {kCalm, kCause, kWarning, kTimeout, kMismatch}) expected[{state, Event::kFault}] = kAllFail;
  for (const State state : {kCalm, kCause, kWarning, kTimeout, kMismatch, kFailed}) {
    expected[{state, Event::kLost}] = kAllFail;
    expected[{state, Event::kReport}] = {Kind::kSendAll, State::kDecided};
  }
  ExpectTransitions(0, {kCalm, kCause, kWarning, kTimeout, kMismatch, kFailed, State::kDecided}, expected);
}

// ---- ranks other than 0 -------------------------------------------------------------------------

TEST(FailureArbiterTest, AnErrorSaysWhatKindOfEventItIs) {
  EXPECT_EQ(FailureArbiter::EventOf(Status(Code::kMismatch, "")), Event::kMismatch);
  EXPECT_EQ(FailureArbiter::EventOf(Status(Code::kDeadlineExceeded, "")), Event::kTimeout);
  EXPECT_EQ(FailureArbiter::EventOf(Status(Code::kPeerLost, "")), Event::kBroken);
  EXPECT_EQ(FailureArbiter::EventOf(Status(Code::kIo, "")), Event::kBroken);
  EXPECT_EQ(FailureArbiter::EventOf(Status(Code::kResourceExhausted, "")), Event::kFault);
}

TEST(FailureArbiterTest, ABrokenConnectionIsTheFailureIfNoCauseComes) {
  for (const int rank : {0, 1}) {
    FailureArbiter arbiter = Rank(rank);
    EXPECT_EQ(arbiter.On({Event::kBroken, Status(Code::kPeerLost, "broken", 2), kPlace}, kBegin).kind, Kind::kNone);
    ASSERT_EQ(arbiter.due(), After(timing::kCause));
    EXPECT_EQ(arbiter.OnTime(After(timing::kCause - 0.01)).kind, Kind::kNone);
    const Action action = arbiter.OnTime(After(timing::kCause));
    EXPECT_EQ(action.kind, rank == 0 ? Kind::kFailEverywhere : Kind::kReport);
    EXPECT_EQ(action.status.message(), "broken");
    EXPECT_EQ(action.status.peer(), 2);
    EXPECT_EQ(arbiter.due().has_value(), rank != 0);
  }
}

// The connection of a rank that is left without rank 0 ends as this one's to rank 0 would a moment later.
TEST(FailureArbiterTest, ABrokenConnectionWithoutRankZeroNamesBoth) {
  FailureArbiter arbiter = Rank(2);
  arbiter.On({Event::kBroken, Status(Code::kPeerLost, "rank 1 closed the connection", 1), kPlace}, kBegin);
  arbiter.OnTime(After(timing::kCause));
  ASSERT_EQ(arbiter.due(), After(timing::kCause + timing::kRootAnswer));
  const Action action = arbiter.OnTime(After(timing::kCause + timing::kRootAnswer));
  EXPECT_EQ(action.kind, Kind::kFailEverywhere);
  EXPECT_EQ(action.status.code(), Code::kPeerLost);
  EXPECT_EQ(action.status.message(),
            "rank 1 closed the connection; and rank 0 does not answer: it is stopped, overloaded or cut off");
  EXPECT_EQ(action.status.peer(), 1);
}

TEST(FailureArbiterTest, ABrokenConnectionToRankZeroIsNamedOnce) {
  FailureArbiter arbiter = Rank(2);
  arbiter.On({Event::kBroken, Status(Code::kPeerLost, "rank 0 cannot be reached", 0), kPlace}, kBegin);
  arbiter.OnTime(After(timing::kCause));
  const Action action = arbiter.OnTime(After(timing::kCause + timing::kRootAnswer));
  EXPECT_EQ(action.status.message(), "rank 0 cannot be reached");
  EXPECT_EQ(action.status.peer(), 0);
}

TEST(FailureArbiterTest, TheCauseOfABrokenConnectionComesFirst) {
  FailureArbiter arbiter = Rank(1);
  arbiter.On(Seen(Event::kBroken), kBegin);
  const Action action = arbiter.On({Event::kDecision, Status(Code::kAborted, "stopped", 2)}, After(0.1));
  EXPECT_EQ(action.kind, Kind::kFailHere);
  EXPECT_EQ(action.status.message(), "stopped");
  EXPECT_EQ(arbiter.OnTime(After(60)).kind, Kind::kNone);
}

TEST(FailureArbiterTest, ASecondFailureDoesNotReplaceTheFirst) {
  FailureArbiter arbiter = Rank(1);
  arbiter.On({Event::kBroken, Status(Code::kIo, "first", 2), kPlace}, kBegin);
  EXPECT_EQ(arbiter.On({Event::kTimeout, Late(), kOtherPlace}, After(0.1)).kind, Kind::kNone);
  EXPECT_EQ(arbiter.On({Event::kBroken, Status(Code::kIo, "third", 0), kPlace}, After(0.2)).kind, Kind::kNone);
  EXPECT_EQ(arbiter.due(), After(timing::kCause));
  EXPECT_EQ(arbiter.OnTime(After(timing::kCause)).status.message(), "first");
}

TEST(FailureArbiterTest, AsksRankZeroAndNamesItIfItDoesNotAnswer) {
  FailureArbiter arbiter = Rank(2);
  const Action asked = arbiter.On({Event::kTimeout, Late(), kPlace}, kBegin);
  EXPECT_EQ(asked.kind, Kind::kAskRoot);
  EXPECT_EQ(asked.about, Event::kTimeout);
  EXPECT_EQ(asked.place, kPlace);
  EXPECT_EQ(asked.status.message(), "'w' timed out");
  ASSERT_EQ(arbiter.due(), After(timing::kRootAnswer));
  const Action action = arbiter.OnTime(After(timing::kRootAnswer));
  EXPECT_EQ(action.kind, Kind::kFailEverywhere);
  EXPECT_EQ(action.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(action.status.message(), "'w' timed out; and rank 0 does not answer: it is stopped, overloaded or cut off");
  EXPECT_EQ(action.status.peer(), 0);
}

TEST(FailureArbiterTest, AMismatchStaysOneIfRankZeroDoesNotAnswer) {
  FailureArbiter arbiter = Rank(2);
  EXPECT_EQ(arbiter.On({Event::kMismatch, Status(Code::kMismatch, "differs", 1), kPlace}, kBegin).kind, Kind::kAskRoot);
  const Status decided = arbiter.OnTime(After(timing::kRootAnswer)).status;
  EXPECT_EQ(decided.code(), Code::kMismatch);
  EXPECT_EQ(decided.message(), "differs");
  EXPECT_EQ(decided.peer(), 1);
}

TEST(FailureArbiterTest, AnOwnAbortThatComesBackChangesNothing) {
  FailureArbiter arbiter = Rank(1);
  EXPECT_EQ(arbiter.On({Event::kDecision, Status(Code::kAborted, "stopped", 1)}, kBegin).kind, Kind::kNone);
}

// ---- rank 0 -------------------------------------------------------------------------------------

View Came(const std::string& text) { return View{kPlace, text, "", false}; }
View Elsewhere(const std::string& instead, bool excused = false) { return View{kPlace, "", instead, excused}; }

TEST(FailureArbiterTest, ATimeoutNamesTheRanksThatHaveNotComeAndWhatTheyWaitIn) {
  FailureArbiter arbiter = Rank(0);
  const Action asked = arbiter.On({Event::kTimeout, Late(), kPlace, 1}, kBegin);
  EXPECT_EQ(asked.kind, Kind::kAskViews);
  EXPECT_EQ(asked.place, kPlace);
  EXPECT_EQ(arbiter.OnView(0, Elsewhere("")).kind, Kind::kNone);
  EXPECT_EQ(arbiter.OnView(2, Elsewhere("allreduce 'b'")).kind, Kind::kNone);
  const Action action = arbiter.OnView(1, Came("allreduce 'w'"));
  EXPECT_EQ(action.kind, Kind::kFailEverywhere);
  EXPECT_EQ(action.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(action.status.message(),
            "'w' timed out; ranks 0 and 2 have not called it; rank 2 waits in allreduce 'b': "
            "do all ranks make the same steps, and as many of them?");
  EXPECT_EQ(action.status.peer(), 0);
}

TEST(FailureArbiterTest, ARankThatDoesNotAnswerIsNamedAndTheJoinedAreNot) {
  FailureArbiter arbiter = Rank(0);
  arbiter.On({Event::kTimeout, Late(), kPlace, 1}, kBegin);
  arbiter.OnView(0, Elsewhere("", /*excused=*/true));
  arbiter.OnView(1, Came("allreduce 'w'"));
  ASSERT_EQ(arbiter.due(), After(timing::kViews));
  const Action action = arbiter.OnTime(After(timing::kViews));
  EXPECT_EQ(action.status.message(), "'w' timed out; rank 2 does not answer: stopped, overloaded or cut off");
  EXPECT_EQ(action.status.peer(), 2);
}

// The rank that finds a mismatch ends its connections, which rank 0 may notice before it is asked.
TEST(FailureArbiterTest, AMismatchIsTheCauseOfABrokenConnection) {
  FailureArbiter arbiter = Rank(0);
  EXPECT_EQ(arbiter.On(Seen(Event::kBroken), kBegin).kind, Kind::kNone);
  EXPECT_EQ(arbiter.On({Event::kMismatch, Status(Code::kMismatch, "differs"), kPlace, 1}, After(0.1)).kind,
            Kind::kAskViews);
  arbiter.OnView(0, Came("allreduce 'a'"));
  arbiter.OnView(2, Came("allreduce 'a'"));
  EXPECT_EQ(arbiter.OnView(1, Came("allreduce 'b'")).status.code(), Code::kMismatch);
}

// A rank that has not come to the operation answers again when it does.
TEST(FailureArbiterTest, AMismatchWaitsForRanksThatComeToTheOperation) {
  FailureArbiter arbiter = Rank(0);
  EXPECT_EQ(arbiter.On({Event::kMismatch, Status(Code::kMismatch, "differs"), kPlace, 1}, kBegin).kind,
            Kind::kAskViews);
  arbiter.OnView(0, Came("allreduce 'a'"));
  arbiter.OnView(1, Came("allreduce 'b'"));
  EXPECT_EQ(arbiter.OnView(2, Elsewhere("")).kind, Kind::kNone);
  const Action action = arbiter.OnView(2, Came("allreduce 'a'"));
  EXPECT_EQ(action.kind, Kind::kFailEverywhere);
  EXPECT_EQ(action.status.code(), Code::kMismatch);
  EXPECT_EQ(action.status.message(),
            "the ranks disagree on collective number 7: ranks 0 and 2: allreduce 'a'; rank 1: allreduce 'b'");
}

// Messages of different operations need not meet: then each of the ranks only waits.
TEST(FailureArbiterTest, RanksThatWaitInDifferentOperationsAtOnePlaceDisagree) {
  FailureArbiter arbiter = Rank(0);
  arbiter.On({Event::kTimeout, Late(), kPlace, 1}, kBegin);
  arbiter.OnView(0, View{kPlace, "allreduce 'a'", "", false, 7});
  arbiter.OnView(1, View{kPlace, "barrier", "", false, 8});
  const Action action = arbiter.OnView(2, View{kPlace, "has completed it already", "", false, 0});
  EXPECT_EQ(action.kind, Kind::kFailEverywhere);
  EXPECT_EQ(action.status.code(), Code::kMismatch);
  EXPECT_EQ(action.status.message(),
            "the ranks disagree on collective number 7: rank 0: allreduce 'a'; rank 1: barrier; "
            "rank 2: has completed it already");
}

// Rows of an all-gather and labels stand in the texts, and the ranks need not agree on them.
TEST(FailureArbiterTest, RanksWhoseViewsDifferOnlyInTheirTextsDoNotDisagree) {
  FailureArbiter arbiter = Rank(0);
  arbiter.On({Event::kTimeout, Late(), kPlace, 1}, kBegin);
  arbiter.OnView(0, View{kPlace, "allgather 'a' float32[1,2]", "", false, 7});
  arbiter.OnView(1, View{kPlace, "allgather 'a' float32[3,2]", "", false, 7});
  const Action action = arbiter.OnView(2, Elsewhere(""));
  EXPECT_EQ(action.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(action.status.peer(), 2);
}

TEST(FailureArbiterTest, AMismatchEndsThoughARankDoesNotComeOrDoesNotAnswer) {
  FailureArbiter arbiter = Rank(0);
  arbiter.On({Event::kMismatch, Status(Code::kMismatch, "differs"), kPlace, 1}, kBegin);
  arbiter.OnView(0, Came("allreduce 'a'"));
  arbiter.OnView(2, Elsewhere(""));
  const Action action = arbiter.OnTime(After(timing::kViews));
  EXPECT_EQ(action.status.message(),
            "the ranks disagree on collective number 7: rank 0: allreduce 'a'; ranks 1 and 2: has called nothing yet");
}

TEST(FailureArbiterTest, ViewsOfAnotherOperationAndLateOnesChangeNothing) {
  FailureArbiter arbiter = Rank(0);
  EXPECT_EQ(arbiter.OnView(1, Came("allreduce 'w'")).kind, Kind::kNone);  // nothing was asked
  arbiter.On({Event::kTimeout, Late(), kPlace, 1}, kBegin);
  for (int rank = 0; rank < kSize; ++rank)
    EXPECT_EQ(arbiter.OnView(rank, View{kOtherPlace, "allreduce 'w'", "", false}).kind, Kind::kNone);
  EXPECT_EQ(arbiter.OnTime(After(timing::kViews)).status.message(),
            "'w' timed out; ranks 0, 1 and 2 do not answer: stopped, overloaded or cut off");
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(arbiter.OnView(rank, Came("late")).kind, Kind::kNone);
}

TEST(FailureArbiterTest, OneWarningOfASlowOperationAndTheRanksGoOn) {
  FailureArbiter arbiter = Rank(0);
  const Status slow(Code::kDeadlineExceeded, "'w' has been running for more than 60 s");
  EXPECT_EQ(arbiter.On({Event::kSlow, slow, kPlace, 1}, kBegin).kind, Kind::kAskViews);
  EXPECT_EQ(arbiter.On({Event::kSlow, slow, kPlace, 2}, kBegin).kind, Kind::kNone);
  arbiter.OnView(0, Came("allreduce 'w'"));
  arbiter.OnView(1, Came("allreduce 'w'"));
  const Action action = arbiter.OnView(2, Elsewhere(""));
  EXPECT_EQ(action.kind, Kind::kWarn);
  EXPECT_EQ(action.status.message(), "'w' has been running for more than 60 s; rank 2 has not called it");
  EXPECT_EQ(arbiter.state(), State::kCalm);
  EXPECT_EQ(arbiter.On({Event::kSlow, slow, kPlace, 2}, After(1)).kind, Kind::kNone);
  EXPECT_EQ(arbiter.On({Event::kSlow, slow, kOtherPlace, 2}, After(1)).kind, Kind::kAskViews);
}

TEST(FailureArbiterTest, AWarningGivesWayToATimeout) {
  FailureArbiter arbiter = Rank(0);
  arbiter.On({Event::kSlow, Status(Code::kDeadlineExceeded, "slow"), kOtherPlace, 1}, kBegin);
  arbiter.OnView(1, View{kOtherPlace, "allreduce", "", false});
  EXPECT_EQ(arbiter.On({Event::kTimeout, Late(), kPlace, 1}, After(0.2)).kind, Kind::kAskViews);
  EXPECT_EQ(arbiter.due(), After(0.2 + timing::kViews));
  for (const int rank : {0, 1}) arbiter.OnView(rank, Came("allreduce 'w'"));
  EXPECT_EQ(arbiter.OnView(2, Elsewhere("")).status.message(), "'w' timed out; rank 2 has not called it");
}

TEST(FailureArbiterTest, TheFirstReportDecidesAndNamesItsRank) {
  FailureArbiter arbiter = Rank(0);
  const Action sent = arbiter.On({Event::kReport, Status(Code::kIo, "recv failed", 1), {}, 2}, kBegin);
  EXPECT_EQ(sent.kind, Kind::kSendAll);
  EXPECT_EQ(sent.status.message(), "rank 2: recv failed");
  EXPECT_EQ(sent.status.peer(), 1);
  EXPECT_EQ(arbiter.On({Event::kReport, Status(Code::kIo, "later"), {}, 1}, kBegin).kind, Kind::kNone);
  EXPECT_EQ(arbiter.On({Event::kLost, Status(Code::kPeerLost, "gone", 1), {}, 1}, kBegin).kind, Kind::kNone);
  EXPECT_EQ(arbiter.On({Event::kDecision, sent.status}, kBegin).kind, Kind::kFailHere);
  // What a rank says of itself, and what rank 0 says, needs no name.
  EXPECT_EQ(Rank(0).On({Event::kReport, Status(Code::kAborted, "rank 2 stopped", 2), {}, 2}, kBegin).status.message(),
            "rank 2 stopped");
  EXPECT_EQ(Rank(0).On({Event::kReport, Status(Code::kIo, "here"), {}, 0}, kBegin).status.message(), "here");
}

TEST(FailureArbiterTest, RankZeroAnswersOthersThoughItHasFailed) {
  FailureArbiter arbiter = Rank(0);
  EXPECT_EQ(arbiter.On({Event::kBlocked, Status(Code::kPeerLost, "rank 1 left", 1)}, kBegin).kind, Kind::kFailHere);
  EXPECT_EQ(arbiter.On({Event::kTimeout, Late(), kPlace, 2}, After(1)).kind, Kind::kAskViews);
  arbiter.On({Event::kFailedHere, {}}, After(1));
  EXPECT_EQ(arbiter.OnTime(After(1 + timing::kViews)).kind, Kind::kFailEverywhere);
}

TEST(FailureArbiterTest, RankZeroThatFailsWhileItAsksStillAnswers) {
  FailureArbiter arbiter = Rank(0);
  arbiter.On({Event::kTimeout, Late(), kPlace, 2}, kBegin);
  EXPECT_EQ(arbiter.On({Event::kBlocked, Status(Code::kPeerLost, "rank 1 left", 1)}, After(0.1)).kind, Kind::kFailHere);
  arbiter.On({Event::kFailedHere, {}}, After(0.2));
  for (const int rank : {0, 2}) arbiter.OnView(rank, Came("allreduce 'w'"));
  const Action action = arbiter.OnTime(After(timing::kViews));
  EXPECT_EQ(action.kind, Kind::kFailEverywhere);
  EXPECT_EQ(action.status.peer(), 1);
}

// ---- limits -------------------------------------------------------------------------------------

// Of two ranks, one asks; the answer of rank 0 reaches it before it blames rank 0, whatever the others do.
TEST(TimingTest, RankZeroIsNotBlamedForASilentRank) {
  FailureArbiter root = Rank(0), other = Rank(1);
  EXPECT_EQ(other.On({Event::kTimeout, Late(), kPlace}, kBegin).kind, Kind::kAskRoot);
  root.On({Event::kTimeout, Late(), kPlace, 1}, kBegin);
  const Time decided = *root.due();
  EXPECT_EQ(root.OnTime(decided).kind, Kind::kFailEverywhere);
  EXPECT_EQ(other.OnTime(decided).kind, Kind::kNone);
  EXPECT_LE(decided + Deadline::Seconds(timing::kTransit), *other.due());
}

TEST(TimingTest, AVanishedHostEndsAllRanksInTime) {
  // Under way: a look a second, one too many for the first data; idle: 5 s and 3 probes of 2 s.
  const double noticed = std::max(AckWatch::kSeconds * (AckWatch::kLooks + 1), 5.0 + 3 * 2.0);
  EXPECT_LE(noticed + timing::kDecision + timing::kTransit, timing::kHostLoss);
}

}  // namespace
}  // namespace tfc
