// The ring collectives: what RingPipeline's parts mean to each of them.
#include <algorithm>
#include <memory>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/ring_pipeline.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {
namespace {

constexpr size_t kWindow = RingPipeline::kWindow;

// Uninitialised memory for `count` segments; it is written before it is read.
class Slots {
 public:
  Slots(size_t count, size_t segment) : segment_(segment), memory_(new std::byte[count * segment]) {}
  std::byte* operator[](size_t slot) const { return memory_.get() + slot * segment_; }

 private:
  size_t segment_;
  std::unique_ptr<std::byte[]> memory_;
};

// The last combination of the ring also finishes (divides, scales); the others only combine.
Reduction ReductionOfStep(const Reduction& reduction, int step, int size) {
  return step == size - 2 ? reduction : reduction.OnlyPrescale();
}

// Partial results are reduced into the output and sent on from there.
class AllReduceWork : public RingWork {
 public:
  AllReduceWork(const RingPipeline& pipeline, const Reduction& reduction, int size, const ConstSpans& input,
                const MutableSpans& output)
      : reduction_(reduction), size_(size), input_(input), output_(output), slots_(kWindow, pipeline.segment()) {}

  ConstSpans First(const RingPart& part) override {
    ConstSpans own = input_.Slice(part.begin, part.end);
    if (!reduction_.scales_input()) return own;
    const MutableSpans scaled = output_.Slice(part.begin, part.end);
    ScaleSpans(reduction_.OnlyPrescale(), own, scaled);
    return AsConst(scaled);
  }

  MutableSpans Room(const RingPart& part) override {
    if (IsReduced(part)) return output_.Slice(part.begin, part.end);
    return {MutableSpan{slots_[part.slot], part.size()}};
  }

  // A reduced part lands where the partial one lies that was sent size - 1 steps ago.
  uint64_t SendsBefore(const RingPart& part) const override {
    return IsReduced(part) ? part.message - static_cast<uint64_t>(size_ - 1) * kWindow + 1 : 0;
  }

  ConstSpans Arrived(const RingPart& part) override {
    const MutableSpans target = output_.Slice(part.begin, part.end);
    if (!IsReduced(part)) {
      CombineSpans(ReductionOfStep(reduction_, part.step, size_), slots_[part.slot], input_.Slice(part.begin, part.end),
                   target);
    }
    return AsConst(target);
  }

 private:
  bool IsReduced(const RingPart& part) const { return part.step >= size_ - 1; }

  const Reduction& reduction_;
  const int size_;
  const SpanIndex<ConstSpan> input_;
  const SpanIndex<MutableSpan> output_;
  const Slots slots_;
};

// Partial results live in scratch slots: the output has room for this rank's own share only.
class ReduceScatterWork : public RingWork {
 public:
  ReduceScatterWork(const RingPipeline& pipeline, const Reduction& reduction, const Members& members,
                    const ConstSpans& input, size_t own_begin, const MutableSpans& output)
      : reduction_(reduction),
        size_(members.size()),
        input_(input),
        own_begin_(own_begin),
        output_(output),
        partial_(2 * kWindow, pipeline.segment()),
        scaled_(reduction.scales_input() ? 2 * kWindow : 0, pipeline.segment()) {}

  // What the slot held before was sent more than kWindow messages ago: SendsBefore of the receive
  // that was posted last has waited for it.
  ConstSpans First(const RingPart& part) override {
    ConstSpans own = input_.Slice(part.begin, part.end);
    if (!reduction_.scales_input()) return own;
    const MutableSpan scaled{scaled_[part.message % (2 * kWindow)], part.size()};
    ScaleSpans(reduction_.OnlyPrescale(), own, {scaled});
    return {ConstSpan{scaled.data, scaled.size}};
  }

  MutableSpans Room(const RingPart& part) override { return {MutableSpan{Partial(part), part.size()}}; }

  // This slot's last content arrived two windows ago and was sent on one window ago.
  uint64_t SendsBefore(const RingPart& part) const override {
    return part.message < kWindow ? 0 : part.message - kWindow + 1;
  }

  ConstSpans Arrived(const RingPart& part) override {
    const ConstSpans own = input_.Slice(part.begin, part.end);
    const Reduction step = ReductionOfStep(reduction_, part.step, size_);
    if (part.step == size_ - 2) {
      CombineSpans(step, Partial(part), own, output_.Slice(part.begin - own_begin_, part.end - own_begin_));
      return {};
    }
    CombineSpans(step, Partial(part), own, {MutableSpan{Partial(part), part.size()}});
    return {ConstSpan{Partial(part), part.size()}};
  }

 private:
  std::byte* Partial(const RingPart& part) const { return partial_[part.message % (2 * kWindow)]; }

  const Reduction& reduction_;
  const int size_;
  const SpanIndex<ConstSpan> input_;
  const size_t own_begin_;
  const SpanIndex<MutableSpan> output_;
  const Slots partial_;
  const Slots scaled_;
};

// Everything arrives where it belongs and is sent on from there.
class AllGatherWork : public RingWork {
 public:
  AllGatherWork(const ConstSpans& input, size_t own_begin, const MutableSpans& output)
      : input_(input), own_begin_(own_begin), output_(output) {}

  ConstSpans First(const RingPart& part) override {
    ConstSpans own = input_.Slice(part.begin - own_begin_, part.end - own_begin_);
    CopySpans(own, output_.Slice(part.begin, part.end));
    return own;
  }
  MutableSpans Room(const RingPart& part) override { return output_.Slice(part.begin, part.end); }
  uint64_t SendsBefore(const RingPart&) const override { return 0; }
  ConstSpans Arrived(const RingPart& part) override { return AsConst(output_.Slice(part.begin, part.end)); }

 private:
  const SpanIndex<ConstSpan> input_;
  const size_t own_begin_;
  const SpanIndex<MutableSpan> output_;
};

}  // namespace

Status RingAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                     const MutableSpans& output) {
  const int size = context.members.size();
  if (size == 1) {
    ScaleSpans(reduction, input, output);
    return Status::Ok();
  }
  const std::vector<size_t> offsets = EvenOffsets(TotalSize(input), DtypeSize(reduction.dtype), size);
  RingPipeline pipeline(context, "ring all-reduce", offsets, 0, 2 * (size - 1));
  AllReduceWork work(pipeline, reduction, size, input, output);
  return pipeline.Run(work);
}

Status RingReduceScatter(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                         const std::vector<size_t>& offsets, const MutableSpans& output) {
  const int size = context.members.size();
  if (size == 1) {
    ScaleSpans(reduction, input, output);
    return Status::Ok();
  }
  RingPipeline pipeline(context, "ring reduce-scatter", offsets, 0, size - 1);
  ReduceScatterWork work(pipeline, reduction, context.members, input,
                         offsets[static_cast<size_t>(context.members.index)], output);
  return pipeline.Run(work);
}

Status RingAllGather(const TransportContext& context, const ConstSpans& input, const std::vector<size_t>& offsets,
                     const MutableSpans& output) {
  const int size = context.members.size();
  if (size == 1) {
    CopySpans(input, output);
    return Status::Ok();
  }
  RingPipeline pipeline(context, "ring all-gather", offsets, size - 1, 2 * (size - 1));
  AllGatherWork work(input, offsets[static_cast<size_t>(context.members.index)], output);
  return pipeline.Run(work);
}

}  // namespace tfc
