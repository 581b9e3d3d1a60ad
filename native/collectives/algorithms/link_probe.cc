#include "collectives/algorithms/link_probe.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

using Clock = Deadline::Clock;

// Nothing is faster: keeps what the clock could not resolve in bounds.
constexpr double kLeastLatency = 1e-7;
constexpr double kLeastSecondsPerByte = 1e-12;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class LinkProbe {
 public:
  explicit LinkProbe(const TransportContext& context)
      : right_((context.members.index + 1) % context.members.size()),
        left_((context.members.index + context.members.size() - 1) % context.members.size()),
        memory_(new std::byte[3 * kProbeBytes + 8]()),
        requests_(context, "link probe", kProbeSteps) {}

  Result<Link> Run() {
    Link link;
    link.measured = true;
    auto latency = Latency();
    if (!latency.ok()) return latency.status();
    link.latency_s = std::max(kLeastLatency, latency.value());
    auto per_byte = Bandwidth(link.latency_s);
    if (!per_byte.ok()) return per_byte.status();
    link.seconds_per_byte = std::max(kLeastSecondsPerByte, per_byte.value());
    return link;
  }

 private:
  // A ping to the right, the answer to the left's ping, the answer from the right: an answer never comes before its
  // ping, so no neighbour that is ahead makes the network look faster than it is.
  Result<double> Latency() {
    double best = std::numeric_limits<double>::max();
    for (int ping = 0; ping < kProbePings; ++ping) {
      const uint32_t there = step_++, back = step_++;
      Ticket asked = 0, pinged = 0, answered = 0, answer = 0;
      TFC_RETURN_IF_ERROR(requests_.Receive(left_, there, {MutableSpan{Room(0).data, 8}}, &asked));
      TFC_RETURN_IF_ERROR(requests_.Receive(right_, back, {MutableSpan{Room(1).data, 8}}, &answer));
      const auto begin = Clock::now();
      TFC_RETURN_IF_ERROR(requests_.Send(right_, there, {Sent(8)}, &pinged));
      TFC_RETURN_IF_ERROR(requests_.Wait(asked, there));
      TFC_RETURN_IF_ERROR(requests_.Send(left_, back, {Sent(8)}, &answered));
      TFC_RETURN_IF_ERROR(requests_.Wait(answer, back));
      best = std::min(best, SecondsSince(begin) / 2);
      TFC_RETURN_IF_ERROR(requests_.Wait(pinged, there));
      TFC_RETURN_IF_ERROR(requests_.Wait(answered, back));
    }
    return best;
  }

  // The left sends when it has been asked to: nothing is on its way before the clock runs.
  Result<double> Bandwidth(double latency_s) {
    double best = std::numeric_limits<double>::max();
    for (int pair = 0; pair < kProbePairs; ++pair) {
      const uint32_t ask = step_++, first = step_++, second = step_++;
      Ticket asking = 0, asked = 0, sent[2] = {0, 0}, received[2] = {0, 0};
      TFC_RETURN_IF_ERROR(requests_.Receive(right_, ask, {Request()}, &asked));
      TFC_RETURN_IF_ERROR(requests_.Receive(left_, first, {Room(0)}, &received[0]));
      TFC_RETURN_IF_ERROR(requests_.Receive(left_, second, {Room(1)}, &received[1]));
      const auto begin = Clock::now();
      TFC_RETURN_IF_ERROR(requests_.Send(left_, ask, {Sent(8)}, &asking));
      TFC_RETURN_IF_ERROR(requests_.Wait(asked, ask));
      TFC_RETURN_IF_ERROR(requests_.Send(right_, first, {Sent(kProbeBytes)}, &sent[0]));
      TFC_RETURN_IF_ERROR(requests_.Send(right_, second, {Sent(kProbeBytes)}, &sent[1]));
      TFC_RETURN_IF_ERROR(requests_.Wait(received[0], first));
      const double first_s = SecondsSince(begin);
      TFC_RETURN_IF_ERROR(requests_.Wait(received[1], second));
      best = std::min(best, SecondsPerByte(first_s, SecondsSince(begin), 2 * latency_s, kProbeBytes));
      for (const Ticket ticket : {asking, sent[0], sent[1]}) TFC_RETURN_IF_ERROR(requests_.Wait(ticket, second));
    }
    return best;
  }

  MutableSpan Room(size_t message) { return MutableSpan{memory_.get() + message * kProbeBytes, kProbeBytes}; }
  ConstSpan Sent(size_t size) const { return ConstSpan{memory_.get() + 2 * kProbeBytes, size}; }
  MutableSpan Request() { return MutableSpan{memory_.get() + 3 * kProbeBytes, 8}; }

  const int right_;
  const int left_;
  const std::unique_ptr<std::byte[]> memory_;  // room for two messages, what is sent, room for a request
  Requests requests_;
  uint32_t step_ = 0;
};

}  // namespace

double SecondsPerByte(double first_s, double second_s, double idle_s, size_t bytes) {
  const auto size = static_cast<double>(bytes);
  return std::max((second_s - first_s) / size, (second_s - idle_s) / (2 * size));
}

Result<Link> MeasureLink(const TransportContext& context) {
  if (context.members.size() == 1) return Link{0, 0, true};
  return LinkProbe(context).Run();
}

Result<Link> AgreeOnLink(const TransportContext& context, const Link& mine) {
  double slowest[] = {mine.latency_s, mine.seconds_per_byte};
  const MutableSpans spans{{reinterpret_cast<std::byte*>(slowest), sizeof(slowest)}};
  const Reduction reduction{Dtype::kFloat64, Op::kMax, 1.0, 1.0, 1};
  TFC_RETURN_IF_ERROR(RecursiveDoublingAllReduce(context, reduction, AsConst(spans), spans));
  if (slowest[0] <= 0 || slowest[1] <= 0) return Link();  // no rank had a neighbour
  return Link{slowest[0], slowest[1], true};
}

}  // namespace tfc
