#include "executor/scheduler.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "executor/fiber.h"

namespace tfc {
namespace {

constexpr double kForever = 1e9;
constexpr double kRetrySeconds = 0.01;  // when a stack could not be mapped
constexpr double kStackSeconds = 1.0;   // and for how long it is tried, before tasks go without

enum class Wait { kNothing, kTask, kTransport, kArena };

// One channel: its tasks and the fiber that runs them.
struct Lane {
  Channel channel;
  std::deque<Scheduler::Task> tasks;
  std::unique_ptr<Fiber> fiber;
  Status no_fiber;                     // why there is none
  std::optional<Deadline> give_up_at;  // then tasks run without one, and fail where they would have to wait
  Wait wait = Wait::kNothing;
  const Condition* condition = nullptr;  // of a wait in the arena
  Deadline deadline = Deadline::After(0);
  bool ending = false;
  const std::function<void()>* outside = nullptr;  // to be called on the thread's own stack, before it goes on

  bool busy() const { return !tasks.empty() || (fiber != nullptr && wait != Wait::kTask); }

  // Back to the scheduler until there may be a reason to look again.
  void Block(Wait kind, const Condition* what, Deadline until) {
    wait = kind;
    condition = what;
    deadline = until;
    fiber->Yield();
    wait = Wait::kNothing;
    condition = nullptr;
  }
};

class FiberTransport final : public Transport {
 public:
  FiberTransport(Transport* inner, Lane* lane) : inner_(inner), lane_(lane) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Result<Ticket> PostSend(int peer, const Tag& tag, const ConstSpans& spans) override {
    return inner_->PostSend(peer, tag, spans);
  }
  Result<Ticket> PostReceive(int peer, const Tag& tag, const MutableSpans& spans) override {
    return inner_->PostReceive(peer, tag, spans);
  }
  Result<bool> Test(Ticket ticket) override { return inner_->Test(ticket); }
  void Interrupt(const Status& status) override { inner_->Interrupt(status); }

  Status Wait(Ticket ticket, Deadline deadline) override {
    while (true) {
      const auto done = inner_->Test(ticket);
      if (!done.ok()) return done.status();
      // Done: releases the ticket. Too late: words the timeout.
      if (done.value() || deadline.Passed()) return inner_->Wait(ticket, deadline);
      if (lane_->fiber == nullptr) {
        inner_->Interrupt(lane_->no_fiber);  // the task's memory must not be used any longer
        return inner_->Wait(ticket, deadline);
      }
      lane_->Block(tfc::Wait::kTransport, nullptr, deadline);
    }
  }

 private:
  Transport* inner_;
  Lane* lane_;
};

class FiberWaiter final : public Waiter {
 public:
  FiberWaiter(Arena* arena, Lane* lane) : arena_(arena), lane_(lane) {}

  Status WaitFor(const Condition& condition, Deadline deadline) override {
    while (true) {
      if (condition.Holds()) return Status::Ok();
      TFC_RETURN_IF_ERROR(arena_->interrupted());
      if (deadline.Passed()) return Status(Code::kDeadlineExceeded, "");
      if (lane_->fiber == nullptr) return lane_->no_fiber;
      lane_->Block(Wait::kArena, &condition, deadline);
    }
  }

 private:
  Arena* arena_;
  Lane* lane_;
};

}  // namespace

struct Scheduler::Impl {
  PolledTransport transport;
  Arena* arena = nullptr;
  int spin_us = 0;
  std::thread thread;
  std::atomic<std::thread::id> progress{};  // while it runs

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<uint32_t, Task>> inbox;
  std::deque<std::function<void()>> calls;
  bool stopping = false;
  std::atomic<bool> news{false};  // the inbox is not empty, or stopping has begun

  // Progress thread only.
  std::map<uint32_t, std::unique_ptr<Lane>> lanes;
  Lane* running = nullptr;  // whose fiber has the thread
  Link link;

  void TakeInbox() {
    if (!news.exchange(false, std::memory_order_acquire)) return;
    std::deque<std::pair<uint32_t, Task>> taken;
    std::deque<std::function<void()>> called;
    {
      std::lock_guard<std::mutex> lock(mutex);
      taken.swap(inbox);
      called.swap(calls);
    }
    for (const auto& call : called) call();
    for (auto& [index, task] : taken) {
      auto& lane = lanes[index];
      if (lane == nullptr) {
        lane = std::make_unique<Lane>();
        lane->channel.index = index;
      }
      lane->tasks.push_back(std::move(task));
    }
  }

  // The fiber's body.
  void RunTasks(Lane* lane) {
    while (!lane->ending) {
      RunQueued(lane);
      lane->Block(Wait::kTask, nullptr, Deadline::After(kForever));
    }
  }

  void RunQueued(Lane* lane) {
    FiberTransport fiber_transport(transport.transport, lane);
    FiberWaiter fiber_waiter(arena, lane);
    Resources resources;
    resources.transport = transport.transport == nullptr ? nullptr : &fiber_transport;
    resources.arena = arena;
    resources.waiter = arena == nullptr ? nullptr : &fiber_waiter;
    while (!lane->tasks.empty()) {
      Task task = std::move(lane->tasks.front());
      lane->tasks.pop_front();
      resources.link = link;
      task(resources, &lane->channel);
    }
  }

  bool MayGoOn(const Lane& lane) const {
    if (lane.wait == Wait::kTask) return !lane.tasks.empty();
    if (lane.wait != Wait::kArena) return true;
    return lane.condition->Holds() || lane.deadline.Passed() || arena->is_interrupted();
  }

  // One turn for every lane that has work and may go on.
  bool ResumeAll() {
    bool resumed = false;
    for (auto& [index, lane] : lanes) {
      if (!lane->busy() || !MayGoOn(*lane)) continue;
      if (!HasFiber(lane.get())) {
        if (!lane->give_up_at->Passed()) continue;
        RunQueued(lane.get());
        resumed = true;
        continue;
      }
      // A wait in the transport is looked at again after each poll only: that is no progress.
      const bool looks_again = lane->wait == Wait::kTransport;
      Resume(lane.get());
      resumed = resumed || !looks_again || lane->wait != Wait::kTransport;
    }
    return resumed;
  }

  // Gives the lane its turn.
  void Resume(Lane* lane) {
    do {
      if (lane->outside != nullptr) (*std::exchange(lane->outside, nullptr))();
      running = lane;
      lane->fiber->Resume();
      running = nullptr;
    } while (lane->outside != nullptr);
  }

  // Makes the lane's fiber if it has none. Without memory for a stack the tasks stay queued for a moment.
  bool HasFiber(Lane* lane) {
    if (lane->fiber != nullptr) return true;
    auto fiber = Fiber::Create([this, lane] { RunTasks(lane); });
    if (fiber.ok()) {
      lane->fiber = fiber.Take();
      return true;
    }
    lane->no_fiber = fiber.status();
    if (!lane->give_up_at) lane->give_up_at = Deadline::After(kStackSeconds);
    return false;
  }

  bool HasWork() const {
    return std::any_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.second->busy(); });
  }

  void EndFibers() {
    for (auto& [index, lane] : lanes) {
      lane->ending = true;
      if (lane->fiber != nullptr) Resume(lane.get());
    }
    lanes.clear();
  }

  // True when a lane that waits in the arena may go on, or there is news.
  class Something final : public Condition {
   public:
    explicit Something(const Impl* impl) : impl_(impl) {}
    bool Holds() const override {
      if (impl_->news.load(std::memory_order_acquire)) return true;
      return std::any_of(impl_->lanes.begin(), impl_->lanes.end(), [this](const auto& lane) {
        return lane.second->wait == Wait::kArena && impl_->MayGoOn(*lane.second);
      });
    }

   private:
    const Impl* impl_;
  };

  void Sleep() {
    bool in_transport = false;
    bool in_arena = false;
    Deadline deadline = Deadline::After(kForever);
    for (const auto& [index, lane] : lanes) {
      if (lane->fiber == nullptr && lane->busy()) deadline = deadline.Earlier(Deadline::After(kRetrySeconds));
      if (lane->fiber == nullptr || !lane->busy()) continue;
      in_transport = in_transport || lane->wait == Wait::kTransport;
      in_arena = in_arena || lane->wait == Wait::kArena;
      deadline = deadline.Earlier(lane->deadline);
    }
    const Something something(this);
    if (in_arena && !in_transport && Spin(something)) return;
    if (PollUntilRung(something, deadline, in_transport) || in_transport) return;
    // There is nothing to poll, or the transport is broken, which its waiting tasks hear in their next turn.
    if (arena != nullptr) {
      arena->SleepUntilRung(Arena::Sleeper::kProgress, something, deadline);
    } else {
      SleepUntilNews(deadline);
    }
  }

  // False if it did not sleep because the transport no longer does, or is not used.
  bool PollUntilRung(const Condition& something, Deadline deadline, bool spin) {
    Status polled;
    if (arena == nullptr) {
      if (!something.Holds()) polled = transport.poll(deadline, spin);
    } else if (arena->bell() != nullptr) {
      arena->PollUntilRung(something, [&] { polled = transport.poll(deadline, spin); });
    } else {
      return false;
    }
    return polled.ok();
  }

  void SleepUntilNews(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_until(lock, deadline.when(), [this] { return news.load(std::memory_order_acquire); });
  }

  bool Spin(const Condition& condition) const {
    if (spin_us <= 0) {
      // One turn for the peer that we wait for: it often shares our core.
      if (!condition.Holds()) ::sched_yield();
      return condition.Holds();
    }
    const Deadline until = Deadline::After(spin_us * 1e-6);
    while (!condition.Holds()) {
      if (until.Passed()) return false;
      for (int i = 0; i < 32; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
    return true;
  }

  void Loop() {
    progress = std::this_thread::get_id();
    while (true) {
      TakeInbox();
      if (ResumeAll()) continue;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (stopping && inbox.empty() && calls.empty() && !HasWork()) break;
      }
      Sleep();
    }
    EndFibers();
    progress = std::thread::id();
  }

  void Wake() {
    {
      std::lock_guard<std::mutex> lock(mutex);  // or SleepUntilNews could miss it
      news.store(true, std::memory_order_release);
    }
    changed.notify_all();
    if (arena != nullptr) return arena->Ring(Arena::Sleeper::kProgress);
    if (transport.wake) transport.wake();
  }
};

Scheduler::Scheduler(PolledTransport transport, Arena* arena, int spin_us) : impl_(std::make_unique<Impl>()) {
  impl_->transport = std::move(transport);
  impl_->arena = arena;
  impl_->spin_us = spin_us;
}

Scheduler::~Scheduler() { Stop(); }

Status Scheduler::Start() {
  auto thread = StartThread("tfc-progress", [this] { impl_->Loop(); });
  if (!thread.ok()) return thread.status();
  impl_->thread = thread.Take();
  return Status::Ok();
}

bool Scheduler::Submit(uint32_t channel, Task task) {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping) return false;
    impl_->inbox.emplace_back(channel, std::move(task));
  }
  impl_->Wake();
  return true;
}

bool Scheduler::Call(std::function<void()> call) {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping) return false;
    impl_->calls.push_back(std::move(call));
  }
  impl_->Wake();
  return true;
}

void Scheduler::CallOutside(const std::function<void()>& call) {
  Lane* const lane = IsProgress() ? impl_->running : nullptr;
  if (lane == nullptr) return call();
  std::exception_ptr thrown;  // goes on where the call was made
  const std::function<void()> caught = [&] {
    try {
      call();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  lane->outside = &caught;
  lane->fiber->Yield();
  if (thrown) std::rethrow_exception(thrown);
}

void Scheduler::SetLink(const Link& link) { impl_->link = link; }

bool Scheduler::IsProgress() const { return impl_->progress.load() == std::this_thread::get_id(); }

void Scheduler::Stop() {
  if (!impl_->thread.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->Wake();
  impl_->thread.join();
}

}  // namespace tfc
