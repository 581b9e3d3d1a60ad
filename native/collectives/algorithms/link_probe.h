// Measures what the transport costs, once, so that algorithms are chosen for this network.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_LINK_PROBE_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_LINK_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "collectives/algorithms/context.h"
#include "collectives/algorithms/link.h"

namespace tfc {

inline constexpr int kProbePings = 8;
inline constexpr int kProbePairs = 3;
inline constexpr size_t kProbeBytes = 128 * 1024;  // of one large message; there are two to a pair
// Steps that MeasureLink takes: what follows under the same sequence begins there.
inline constexpr uint32_t kProbeSteps = 2 * kProbePings + 3 * kProbePairs;

// Every member at the same time, with its neighbours in a ring: the shortest of some round trips to the right, halved,
// and the best of some pairs of large messages from the left. Not equal on all ranks.
Result<Link> MeasureLink(const TransportContext& context);

// The slowest of what the members bring, bit by bit the same on all of them. A member that has nothing to
// say brings a latency and a time of 0.
Result<Link> AgreeOnLink(const TransportContext& context, const Link& mine);

// Seconds a byte, from when two messages of `bytes` bytes were there; `idle_s` of that time nothing was under way. The
// first one may have gone through a network's reserve at once and the second one may have been waiting already when
// the first one was looked at, so it is the slower of both views. Pure.
double SecondsPerByte(double first_s, double second_s, double idle_s, size_t bytes);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_LINK_PROBE_H_
