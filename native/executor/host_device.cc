#include "executor/host_device.h"

#include <optional>
#include <utility>
#include <vector>

#include "executor/channels.h"
#include "executor/plan.h"

namespace tfc {

void Engine::HostDevice::Enqueue(const std::shared_ptr<Plan>& plan, uint32_t channel) {
  if (channel == kNoPlanChannel) return Negotiate(plan);
  engine_.scheduler_->Submit(channel, [this, plan](const Resources& resources, Channel* on) {
    while (true) {
      std::optional<Pending> run;
      {
        const MutexLock lock(engine_.mutex_);
        run = plan->Next();
        if (!run) return;
        if (engine_.Is(kJoining)) engine_.failure_.events().Notify();
      }
      const Status status = engine_.RunWatched(run->operation, resources, run->deadline, on);
      engine_.scheduler_->CallOutside([&] { run->done(status); });
      engine_.Complete(plan);
    }
  });
}

// More plans are in use than there are channels: each bucket is an operation that is matched by name.
void Engine::HostDevice::Negotiate(const std::shared_ptr<Plan>& plan) {
  std::vector<Request> requests;
  {
    // Runs of one bucket keep their order.
    const MutexLock lock(engine_.mutex_);
    for (Pending& run : plan->order().TakeAll()) {
      const Done done = [this, plan, done = std::move(run.done)](const Status& status) {
        done(status);
        engine_.Complete(plan);
      };
      requests.push_back(engine_.RequestFor(run.operation));
      engine_.pending_[run.operation.name].push_back(Pending{std::move(run.operation), done, run.deadline});
    }
    plan->waiting = 0;
  }
  for (const Request& request : requests) engine_.Ask(request);
}

void Engine::HostDevice::Decide(const Decision& decision) {
  std::shared_ptr<Pending> next;
  bool taken = false;
  {
    const MutexLock lock(engine_.mutex_);
    const auto found = engine_.pending_.find(decision.name);
    if (found == engine_.pending_.end()) return;  // failed meanwhile
    next = std::make_shared<Pending>(std::move(found->second.front()));
    found->second.pop_front();
    if (found->second.empty()) engine_.pending_.erase(found);
    const auto run = [this, next](const Resources& resources, Channel* channel) {
      const Status status = engine_.RunWatched(next->operation, resources, next->deadline, channel);
      engine_.scheduler_->CallOutside([&] { next->done(status); });
    };
    // Under the mutex: a join that finds nothing pending finds the operation on its channel.
    taken = decision.refusal.ok()
                ? engine_.scheduler_->Submit(kNegotiatedChannel, run)
                : engine_.scheduler_->Call([next, refusal = decision.refusal] { next->done(refusal); });
  }
  if (engine_.Is(kJoining)) engine_.failure_.events().Notify();
  if (!taken) next->done(engine_.failure_.Get());
}

void Engine::HostDevice::Fail(const Status& status) {
  const MutexLock lock(engine_.mutex_);
  if (!engine_.started_) return;
  if (engine_.transport_.transport != nullptr) engine_.transport_.transport->Interrupt(status);
  if (engine_.arena_ != nullptr) engine_.arena_->Interrupt(status);
}

}  // namespace tfc
