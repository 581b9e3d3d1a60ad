// The one loop behind the ring collectives. Internal to algorithms/.
//
// The buffer is cut into one share for each member. In step t member i sends share (i - 1 - t) to
// its right neighbour and receives share (i - 2 - t) from its left. Steps [0, p - 1) are a
// reduce-scatter that leaves share i at member i; steps [p - 1, 2(p - 1)) are the all-gather that
// follows; both together are the all-reduce.
//
// Shares travel in segments. A window of kWindow segments of every share goes through all steps
// before the next window begins, so a segment is still in the cache when it is sent on, and memory
// is bounded for any length. Message j = ((window * steps) + step) * kWindow + segment; after
// message j has been received, message j + kWindow can be sent: it is either that same segment in
// its next step or the first step of the next window. So kWindow messages are always under way.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_RING_PIPELINE_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_RING_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/span.h"
#include "base/status.h"
#include "collectives/algorithms/context.h"
#include "collectives/algorithms/requests.h"

namespace tfc {

// One message: bytes [begin, end) of the concatenation. An empty one is never sent.
struct RingPart {
  uint64_t message = 0;  // running number
  int step = 0;          // 0 .. 2(p - 1)
  size_t slot = 0;       // segment inside the window: 0 .. kWindow
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
};

// The actions of a collective on the parts.
class RingWork {
 public:
  virtual ~RingWork() = default;
  // The part that this rank sends in the first step.
  virtual ConstSpans First(const RingPart& part) = 0;
  // The destination of an arriving part.
  virtual MutableSpans Room(const RingPart& part) = 0;
  // Sends with a number below this must be done before Room(part) may be written. Asked for every
  // part, also for empty ones.
  virtual uint64_t SendsBefore(const RingPart& part) const = 0;
  // Takes a part that has arrived; returns where it lies now, to be sent on.
  virtual ConstSpans Arrived(const RingPart& part) = 0;
};

class RingPipeline {
 public:
  static constexpr size_t kWindow = 4;
  static constexpr size_t kLargestSegment = 256 * 1024;  // fits the second-level cache, kWindow times
  static constexpr size_t kSmallestSegment = 16 * 1024;

  // `offsets`: where the members' shares lie: size() + 1 entries, each between two elements. Borrowed.
  RingPipeline(const TransportContext& context, const char* phase, const std::vector<size_t>& offsets, int first_step,
               int end_step);

  size_t segment() const { return segment_; }

  Status Run(RingWork& work);

 private:
  uint64_t MessagesPerWindow() const { return static_cast<uint64_t>(end_step_ - first_step_) * kWindow; }
  RingPart PartOf(uint64_t message, int distance) const;
  RingPart Sent(uint64_t message) const { return PartOf(message, 1); }
  RingPart Received(uint64_t message) const { return PartOf(message, 2); }
  Status Send(uint64_t message, const ConstSpans& spans);
  Status PostReceive(uint64_t message, RingWork& work);

  const TransportContext& context_;
  const std::vector<size_t>& offsets_;
  const int first_step_;
  const int end_step_;
  size_t segment_ = 0;
  uint64_t messages_ = 0;
  Requests requests_;
  TicketQueue sends_;
  std::deque<Ticket> receives_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_RING_PIPELINE_H_
