// A bucket plan at work: what has been started and whether the ranks have agreed on it.
#ifndef TFCOLLECTIVE_EXECUTOR_PLAN_H_
#define TFCOLLECTIVE_EXECUTOR_PLAN_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "executor/bucket_order.h"
#include "executor/engine.h"

namespace tfc {

// Guarded by the engine's mutex.
class Plan {
 public:
  explicit Plan(PlanSpec spec) : spec_(std::move(spec)), order_(spec_.num_buckets), starts_(spec_.num_buckets) {}

  const PlanSpec& spec() const { return spec_; }
  BucketOrder<Pending>& order() { return order_; }
  // This bucket's next run waits for its turn.
  void Start(size_t bucket, Pending run) {
    run.operation.step = ++starts_[bucket];
    order_.Start(bucket, std::move(run));
    ++waiting;
    ++unfinished;
  }
  // The run whose turn it is, if it has been started: it begins.
  std::optional<Pending> Next() {
    std::optional<Pending> run = order_.Next();
    if (!run) return run;
    --waiting;
    begun = run->deadline;
    return run;
  }

  // The next run asks the ranks to agree again, as the first one did.
  void StartAnew() {
    asked = false;
    channel.reset();
    forgotten = false;
  }

  Device* device = nullptr;           // where the buckets lie, once one has been started; it stays so
  bool asked = false;                 // the ranks are being asked to agree
  std::optional<uint32_t> channel;    // once they have; may be kNoPlanChannel
  size_t waiting = 0;                 // runs in order()
  size_t unfinished = 0;              // runs that were started and are not done
  Deadline begun = Deadline::At({});  // that of the run that has begun last
  bool forgotten = false;             // to be dropped between two steps, once no run is unfinished

 private:
  const PlanSpec spec_;
  BucketOrder<Pending> order_;
  std::vector<uint64_t> starts_;  // of each bucket, in this process
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_PLAN_H_
