// Every limit of the control side, in seconds, and how they depend on each other.
#ifndef TFCOLLECTIVE_CONTROL_TIMING_H_
#define TFCOLLECTIVE_CONTROL_TIMING_H_

namespace tfc::timing {

inline constexpr double kTick = 0.5;     // between two looks at what waits: how exactly its timeouts are kept
inline constexpr double kTransit = 0.3;  // a control message goes to another rank and is handled there

// A broken connection is often the consequence of a failure whose news is on its way: a rank waits this long for it.
inline constexpr double kCause = 0.5;
// Rank 0 has asked all ranks what they do. A rank that has not answered then does not answer.
inline constexpr double kViews = 0.5;
// A rank has asked rank 0. Without an answer then, it is rank 0 that does not answer.
inline constexpr double kRootAnswer = kViews + kTransit;
// Rank 0 alone knows which ranks are missing: the others let it speak first when a wait has timed out.
inline constexpr double kRootGrace = 2.0;
// A failed operation ends then even if this rank's monitor thread does not run.
inline constexpr double kDecision = 2.0;

// A process that uses less of one processor than this only waits: its heartbeats and this thread's looks are all.
inline constexpr double kIdleShare = 0.05;

// A rank that has failed stays this long for those that still ask why.
inline constexpr double kFailedLinger = 1.0;
inline constexpr double kShutdown = 2.0;  // a communicator that is dropped without a shutdown

// A host that vanishes ends the operations of all ranks in this time.
inline constexpr double kHostLoss = 15.0;

static_assert(kRootAnswer >= kViews + kTransit, "rank 0 has answered before it is blamed");
static_assert(kDecision >= kCause + kRootAnswer + kTransit,
              "the arbiter has decided before an operation stops waiting for it");
static_assert(kRootGrace >= kTick + kTransit, "rank 0 looks, and its decision arrives, before the others speak");
static_assert(kFailedLinger >= kRootAnswer && kFailedLinger >= kCause,
              "a rank that has failed stays until the others know why");
static_assert(kShutdown >= kFailedLinger, "dropping a communicator leaves time for what a failure needs");

}  // namespace tfc::timing

#endif  // TFCOLLECTIVE_CONTROL_TIMING_H_
