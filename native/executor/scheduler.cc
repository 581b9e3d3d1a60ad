#include "executor/scheduler.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/event_count.h"
#include "base/mutex.h"
#include "base/pause.h"
#include "base/thread.h"
#include "executor/fiber.h"

namespace tfc {
namespace {

constexpr double kRetrySeconds = 0.01;  // when a stack could not be mapped
constexpr double kStackSeconds = 1.0;   // and for how long it is tried, before tasks go without

enum class Wait { kNothing, kTask, kTransport, kArena };

// One channel: its tasks and the fiber that runs them.
struct Stream {
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
  FiberTransport(Transport* inner, Stream* stream) : inner_(inner), stream_(stream) {}

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
      if (stream_->fiber == nullptr) {
        inner_->Interrupt(stream_->no_fiber);  // the task's memory must not be used any longer
        return inner_->Wait(ticket, deadline);
      }
      stream_->Block(tfc::Wait::kTransport, nullptr, deadline);
    }
  }

 private:
  Transport* inner_;
  Stream* stream_;
};

class FiberWaiter final : public Waiter {
 public:
  FiberWaiter(Arena* arena, Stream* stream) : arena_(arena), stream_(stream) {}

  Status WaitFor(const Condition& condition, Deadline deadline) override {
    while (true) {
      if (condition.Holds()) return Status::Ok();
      TFC_RETURN_IF_ERROR(arena_->interrupted());
      if (deadline.Passed()) return Status(Code::kDeadlineExceeded, "");
      if (stream_->fiber == nullptr) return stream_->no_fiber;
      stream_->Block(Wait::kArena, &condition, deadline);
    }
  }

 private:
  Arena* arena_;
  Stream* stream_;
};

}  // namespace

struct Scheduler::Impl {
  // What the progress thread shall do.
  struct Given {
    std::optional<uint32_t> channel;  // none: at once, on the thread's own stack
    Task task;
  };

  PolledTransport transport;
  Arena* arena = nullptr;
  int spin_us = 0;
  std::thread thread;
  std::atomic<std::thread::id> progress{};  // while it runs

  Mutex mutex;
  std::deque<Given> inbox TFC_GUARDED_BY(mutex);
  bool stopping TFC_GUARDED_BY(mutex) = false;
  std::atomic<bool> news{false};  // the inbox is not empty, or stopping has begun
  EventCount events;              // where the progress thread sleeps when it has nothing to poll

  ThreadRole progress_thread;
  std::map<uint32_t, std::unique_ptr<Stream>> streams TFC_GUARDED_BY(progress_thread);
  Stream* running TFC_GUARDED_BY(progress_thread) = nullptr;  // whose fiber has the thread
  Link link TFC_GUARDED_BY(progress_thread);

  void TakeInbox() TFC_REQUIRES(progress_thread) {
    if (!news.exchange(false, std::memory_order_acquire)) return;
    std::deque<Given> taken;
    {
      const MutexLock lock(mutex);
      taken.swap(inbox);
    }
    for (Given& given : taken) given.channel ? Queue(*given.channel, std::move(given.task)) : given.task({}, nullptr);
  }

  void Queue(uint32_t index, Task task) TFC_REQUIRES(progress_thread) {
    auto& stream = streams[index];
    if (stream == nullptr) {
      stream = std::make_unique<Stream>();
      stream->channel.index = index;
    }
    stream->tasks.push_back(std::move(task));
  }

  // The fiber's body.
  void RunTasks(Stream* stream) TFC_REQUIRES(progress_thread) {
    while (!stream->ending) {
      RunQueued(stream);
      stream->Block(Wait::kTask, nullptr, Deadline::Never());
    }
  }

  void RunQueued(Stream* stream) TFC_REQUIRES(progress_thread) {
    FiberTransport fiber_transport(transport.transport, stream);
    FiberWaiter fiber_waiter(arena, stream);
    Resources resources;
    resources.transport = transport.transport == nullptr ? nullptr : &fiber_transport;
    resources.arena = arena;
    resources.waiter = arena == nullptr ? nullptr : &fiber_waiter;
    while (!stream->tasks.empty()) {
      Task task = std::move(stream->tasks.front());
      stream->tasks.pop_front();
      resources.link = link;
      task(resources, &stream->channel);
    }
  }

  bool MayGoOn(const Stream& stream) const {
    if (stream.wait == Wait::kTask) return !stream.tasks.empty();
    if (stream.wait != Wait::kArena) return true;
    return stream.condition->Holds() || stream.deadline.Passed() || arena->is_interrupted();
  }

  // One turn for every stream that has work and may go on.
  bool ResumeAll() TFC_REQUIRES(progress_thread) {
    bool resumed = false;
    for (auto& [index, stream] : streams) {
      if (!stream->busy() || !MayGoOn(*stream)) continue;
      if (!HasFiber(stream.get())) {
        if (!stream->give_up_at->Passed()) continue;
        RunQueued(stream.get());
        resumed = true;
        continue;
      }
      // A wait in the transport is looked at again after each poll only: that is no progress.
      const bool looks_again = stream->wait == Wait::kTransport;
      Resume(stream.get());
      resumed = resumed || !looks_again || stream->wait != Wait::kTransport;
    }
    return resumed;
  }

  // Gives the stream its turn.
  void Resume(Stream* stream) TFC_REQUIRES(progress_thread) {
    do {
      if (stream->outside != nullptr) (*std::exchange(stream->outside, nullptr))();
      running = stream;
      stream->fiber->Resume();
      running = nullptr;
    } while (stream->outside != nullptr);
  }

  // Makes the stream's fiber if it has none. Without memory for a stack the tasks stay queued for a moment.
  bool HasFiber(Stream* stream) {
    if (stream->fiber != nullptr) return true;
    auto fiber = Fiber::Create([this, stream]() TFC_REQUIRES(progress_thread) { RunTasks(stream); });
    if (fiber.ok()) {
      stream->fiber = fiber.Take();
      return true;
    }
    stream->no_fiber = fiber.status();
    if (!stream->give_up_at) stream->give_up_at = Deadline::After(kStackSeconds);
    return false;
  }

  bool HasWork() const TFC_REQUIRES(progress_thread) {
    return std::any_of(streams.begin(), streams.end(), [](const auto& stream) { return stream.second->busy(); });
  }

  void EndFibers() TFC_REQUIRES(progress_thread) {
    for (auto& [index, stream] : streams) {
      stream->ending = true;
      if (stream->fiber != nullptr) Resume(stream.get());
    }
    streams.clear();
  }

  // True when a stream that waits in the arena may go on, or there is news.
  class Something final : public Condition {
   public:
    explicit Something(const Impl* impl) : impl_(impl) {}
    bool Holds() const override {
      impl_->progress_thread.AssertHeld();
      if (impl_->news.load(std::memory_order_acquire)) return true;
      return std::any_of(impl_->streams.begin(), impl_->streams.end(), [this](const auto& stream) {
        return stream.second->wait == Wait::kArena && impl_->MayGoOn(*stream.second);
      });
    }

   private:
    const Impl* impl_;
  };

  void Sleep() TFC_REQUIRES(progress_thread) {
    bool in_transport = false;
    bool in_arena = false;
    Deadline deadline = Deadline::Never();
    for (const auto& [index, stream] : streams) {
      if (stream->fiber == nullptr && stream->busy()) deadline = deadline.Earlier(Deadline::After(kRetrySeconds));
      if (stream->fiber == nullptr || !stream->busy()) continue;
      in_transport = in_transport || stream->wait == Wait::kTransport;
      in_arena = in_arena || stream->wait == Wait::kArena;
      deadline = deadline.Earlier(stream->deadline);
    }
    const Something something(this);
    if (in_arena && !in_transport && Spin(something)) return;
    if (PollUntilRung(something, deadline, in_transport) || in_transport) return;
    // There is nothing to poll, or the transport is broken, which its waiting tasks hear in their next turn.
    if (arena != nullptr) {
      arena->SleepUntilRung(Arena::Sleeper::kProgress, something, deadline);
    } else {
      events.WaitUntil(deadline, [this] { return news.load(std::memory_order_acquire); });
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

  bool Spin(const Condition& condition) const {
    if (spin_us <= 0) {
      // One turn for the peer that we wait for: it often shares our core.
      if (!condition.Holds()) ::sched_yield();
      return condition.Holds();
    }
    const Deadline until = Deadline::After(spin_us * 1e-6);
    while (!condition.Holds()) {
      if (until.Passed()) return false;
      for (int i = 0; i < 32; ++i) Pause();
    }
    return true;
  }

  void Loop() {
    progress_thread.AssertHeld();
    progress = std::this_thread::get_id();
    while (true) {
      TakeInbox();
      if (ResumeAll()) continue;
      {
        const MutexLock lock(mutex);
        if (stopping && inbox.empty() && !HasWork()) break;
      }
      Sleep();
    }
    EndFibers();
    progress = std::thread::id();
  }

  bool Give(Given given) {
    {
      const MutexLock lock(mutex);
      if (stopping) return false;
      inbox.push_back(std::move(given));
    }
    Wake();
    return true;
  }

  void Wake() {
    news.store(true, std::memory_order_release);
    if (arena != nullptr) return arena->Ring(Arena::Sleeper::kProgress);
    if (transport.wake) transport.wake();
    events.Notify();
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

bool Scheduler::Submit(uint32_t channel, Task task) { return impl_->Give({channel, std::move(task)}); }

bool Scheduler::Call(std::function<void()> call) {
  return impl_->Give({std::nullopt, [call = std::move(call)](const Resources&, Channel*) { call(); }});
}

void Scheduler::CallOutside(const std::function<void()>& call) {
  if (!IsProgress()) return call();
  impl_->progress_thread.AssertHeld();
  Stream* const stream = impl_->running;
  if (stream == nullptr) return call();
  std::exception_ptr thrown;  // goes on where the call was made
  const std::function<void()> caught = [&] {
    try {
      call();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  stream->outside = &caught;
  stream->fiber->Yield();
  if (thrown) std::rethrow_exception(thrown);
}

void Scheduler::SetLink(const Link& link) {
  impl_->progress_thread.AssertHeld();
  impl_->link = link;
}

bool Scheduler::IsProgress() const { return impl_->progress.load() == std::this_thread::get_id(); }

void Scheduler::Stop() {
  if (!impl_->thread.joinable()) return;
  {
    const MutexLock lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->Wake();
  impl_->thread.join();
}

}  // namespace tfc
