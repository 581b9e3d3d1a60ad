#include "collectives/algorithms/ring_pipeline.h"

#include <algorithm>

namespace tfc {
namespace {

constexpr size_t kSegmentAlignment = 64;  // a multiple of every element size, and of a cache line

size_t LargestShare(const std::vector<size_t>& offsets) {
  size_t largest = 0;
  for (size_t share = 0; share + 1 < offsets.size(); ++share) {
    largest = std::max(largest, offsets[share + 1] - offsets[share]);
  }
  return largest;
}

size_t RoundUp(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

size_t DivideUp(size_t value, size_t by) { return (value + by - 1) / by; }

// Equal segments, kWindow (or a multiple of it) to the largest share where that is long enough.
size_t SegmentOf(size_t largest_share) {
  const size_t windows =
      std::max<size_t>(1, DivideUp(largest_share, RingPipeline::kWindow * RingPipeline::kLargestSegment));
  const size_t even = DivideUp(largest_share, windows * RingPipeline::kWindow);
  return RoundUp(std::clamp(even, RingPipeline::kSmallestSegment, RingPipeline::kLargestSegment), kSegmentAlignment);
}

}  // namespace

RingPipeline::RingPipeline(const TransportContext& context, const char* phase, const std::vector<size_t>& offsets,
                           int first_step, int end_step)
    : context_(context),
      offsets_(offsets),
      first_step_(first_step),
      end_step_(end_step),
      segment_(SegmentOf(LargestShare(offsets))),
      messages_(DivideUp(LargestShare(offsets), segment_ * kWindow) * MessagesPerWindow()),
      requests_(context, phase, messages_),
      sends_(requests_) {}

RingPart RingPipeline::PartOf(uint64_t message, int distance) const {
  const int size = context_.members.size();
  const uint64_t row = message / kWindow;
  const auto steps = static_cast<uint64_t>(end_step_ - first_step_);
  RingPart part;
  part.message = message;
  part.slot = static_cast<size_t>(message % kWindow);
  part.step = first_step_ + static_cast<int>(row % steps);
  const auto share = static_cast<size_t>((context_.members.index + 2 * size - distance - part.step % size) % size);
  const size_t skipped = (static_cast<size_t>(row / steps) * kWindow + part.slot) * segment_;
  part.begin = std::min(offsets_[share] + skipped, offsets_[share + 1]);
  part.end = std::min(part.begin + segment_, offsets_[share + 1]);
  return part;
}

Status RingPipeline::Send(uint64_t message, const ConstSpans& spans) {
  const int right = (context_.members.index + 1) % context_.members.size();
  Ticket ticket = 0;
  if (Sent(message).size() > 0)
    TFC_RETURN_IF_ERROR(requests_.Send(right, static_cast<uint32_t>(message), spans, &ticket));
  sends_.Add(ticket);
  return Status::Ok();
}

Status RingPipeline::PostReceive(uint64_t message, RingWork& work) {
  const int left = (context_.members.index + context_.members.size() - 1) % context_.members.size();
  const RingPart part = Received(message);
  Ticket ticket = 0;
  TFC_RETURN_IF_ERROR(sends_.WaitBelow(work.SendsBefore(part)));
  if (part.size() > 0) {
    TFC_RETURN_IF_ERROR(requests_.Receive(left, static_cast<uint32_t>(message), work.Room(part), &ticket));
  }
  receives_.push_back(ticket);
  return Status::Ok();
}

Status RingPipeline::Run(RingWork& work) {
  const uint64_t ahead = std::min<uint64_t>(kWindow, messages_);
  for (uint64_t message = 0; message < ahead; ++message) TFC_RETURN_IF_ERROR(PostReceive(message, work));
  for (uint64_t message = 0; message < ahead; ++message) {
    const RingPart part = Sent(message);
    TFC_RETURN_IF_ERROR(Send(message, part.size() > 0 ? work.First(part) : ConstSpans()));
  }
  for (uint64_t message = 0; message < messages_; ++message) {
    TFC_RETURN_IF_ERROR(requests_.Wait(receives_.front(), message));
    receives_.pop_front();
    const RingPart part = Received(message);
    ConstSpans now = part.size() > 0 ? work.Arrived(part) : ConstSpans();
    if (message + kWindow >= messages_) continue;
    const RingPart next = Sent(message + kWindow);
    if (next.step == first_step_) now = next.size() > 0 ? work.First(next) : ConstSpans();
    TFC_RETURN_IF_ERROR(Send(message + kWindow, now));
    TFC_RETURN_IF_ERROR(PostReceive(message + kWindow, work));
  }
  return sends_.WaitAll();
}

}  // namespace tfc
