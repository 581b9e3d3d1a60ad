#include "collectives/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "base/event_fd.h"
#include "base/mutex.h"
#include "collectives/transport/tcp/peer_link.h"
#include "collectives/transport/tcp/request_table.h"

namespace tfc {
namespace {

constexpr uint64_t kWakeId = ~uint64_t{0};  // of the event descriptor; links have their rank
constexpr uint64_t kBellId = kWakeId - 1;
constexpr int kMostVainSpins = 6;                    // then one sleep in 64 is spun before
constexpr int kLongestSleepMillis = 60 * 60 * 1000;  // epoll counts milliseconds in an int

Status CheckOptions(const TcpTransportOptions& options) {
  const bool fits = options.self.size >= 1 && options.self.rank >= 0 && options.self.rank < options.self.size &&
                    options.addresses.size() == static_cast<size_t>(options.self.size);
  if (fits) return Status::Ok();
  return Status(Code::kInvalidArgument, "rank " + std::to_string(options.self.rank) + " of " +
                                            std::to_string(options.self.size) + " with " +
                                            std::to_string(options.addresses.size()) + " addresses");
}

}  // namespace

struct TcpTransport::Impl {
  explicit Impl(const TcpTransportOptions& given)
      : options(given), links(given.addresses.size()), handed_over(given.addresses.size()) {}

  Status Open();

  // Any thread.
  void Interrupt(const Status& status);
  Status AddConnection(int peer, UniqueFd fd);

  Status Enter() TFC_REQUIRES(driver);
  Status EnterPost() TFC_REQUIRES(driver);
  Status Fail(const Status& status) TFC_REQUIRES(driver);
  void Break(const Status& status) TFC_REQUIRES(driver);
  Result<Request*> NewRequest(int peer, const Tag& tag, bool is_send, Ticket* ticket) TFC_REQUIRES(driver);
  Result<PeerLink*> LinkTo(int peer) TFC_REQUIRES(driver);
  Status Finish(const Status& status, Ticket ticket) TFC_REQUIRES(driver);
  Status Watch(uint64_t id, int fd, uint32_t events);
  Status WatchPeer(int peer, int fd) TFC_REQUIRES(driver);
  Status TakeHandedOver() TFC_REQUIRES(driver);
  void PumpReady(bool* progress) TFC_REQUIRES(driver);
  void PumpEagerly(int peer, bool* progress) TFC_REQUIRES(driver);
  void NoteTraffic() TFC_REQUIRES(driver);
  void ExpectAnswers() TFC_REQUIRES(driver);
  void LookAtHosts() TFC_REQUIRES(driver);
  Status Sleep(Deadline deadline, bool spin, bool* progress) TFC_REQUIRES(driver);
  Status WaitForEvents(int millis, int* count) TFC_REQUIRES(driver);
  Status Spin(Deadline deadline, int* count) TFC_REQUIRES(driver);
  bool SpinPays() TFC_REQUIRES(driver);
  void Dispatch(int count) TFC_REQUIRES(driver);
  Deadline EarliestOf(Deadline deadline) const TFC_REQUIRES(driver);
  Status TimedOut(const Request& request) const TFC_REQUIRES(driver);

  const TcpTransportOptions options;
  UniqueFd epoll;
  EventFd wake;

  ThreadRole driver;  // the thread that posts, waits, tests and polls
  RequestTable requests TFC_GUARDED_BY(driver);
  std::vector<std::unique_ptr<PeerLink>> links TFC_GUARDED_BY(driver);  // by rank; null until first used
  std::vector<PeerLink*> used TFC_GUARDED_BY(driver);                   // the links that there are
  std::array<epoll_event, 64> events TFC_GUARDED_BY(driver);
  bool news TFC_GUARDED_BY(driver) = false;        // since the last Poll: bytes were moved, or Wake was called
  int vain_spins TFC_GUARDED_BY(driver) = 0;       // in a row
  int sleeps_to_skip TFC_GUARDED_BY(driver) = 0;   // before spinning is tried again
  bool unanswered TFC_GUARDED_BY(driver) = false;  // something was sent that the peers' hosts may not have acknowledged
  Deadline next_look TFC_GUARDED_BY(driver) = Deadline::At({});  // then: when to look whether they still do
  Status broken TFC_GUARDED_BY(driver);  // the first error that a connection met: ends every call that has to wait
  Status dead TFC_GUARDED_BY(driver);    // the first error that a call returned: ends every call

  Mutex mutex;
  std::vector<bool> handed_over TFC_GUARDED_BY(mutex);
  std::vector<std::pair<int, UniqueFd>> inbox TFC_GUARDED_BY(mutex);
  Status interrupted TFC_GUARDED_BY(mutex);
  std::atomic<bool> has_mail{false};  // inbox or interrupted was changed: look under the mutex
  std::atomic<bool> has_wake{false};
};

Status TcpTransport::Impl::Open() {
  epoll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Status::FromErrno("epoll_create1", errno);
  Result<EventFd> event = EventFd::Create();
  if (!event.ok()) return event.status();
  wake = event.Take();
  TFC_RETURN_IF_ERROR(Watch(kWakeId, wake.fd(), EPOLLIN));
  return options.bell == nullptr ? Status::Ok() : Watch(kBellId, options.bell->fd(), EPOLLIN);
}

void TcpTransport::Impl::Interrupt(const Status& status) {
  {
    const MutexLock lock(mutex);
    if (!interrupted.ok()) return;
    interrupted = status;
    has_mail = true;
  }
  wake.Signal();
}

Status TcpTransport::Impl::AddConnection(int peer, UniqueFd fd) {
  if (peer <= options.self.rank || peer >= options.self.size) {
    return Status(Code::kInvalidArgument,
                  "rank " + std::to_string(peer) + " may not connect to rank " + std::to_string(options.self.rank));
  }
  {
    const MutexLock lock(mutex);
    if (handed_over[static_cast<size_t>(peer)]) {
      return Status(Code::kInvalidArgument, "rank " + std::to_string(peer) + " is connected already");
    }
    handed_over[static_cast<size_t>(peer)] = true;
    inbox.emplace_back(peer, std::move(fd));
    has_mail = true;
  }
  wake.Signal();
  return Status::Ok();
}

// Every call begins with it: the transport may be dead, interrupted, or have got a connection.
Status TcpTransport::Impl::Enter() {
  if (!dead.ok()) return dead;
  return has_mail.load(std::memory_order_acquire) ? TakeHandedOver() : Status::Ok();
}

Status TcpTransport::Impl::EnterPost() {
  TFC_RETURN_IF_ERROR(Enter());
  return broken.ok() ? broken : Fail(broken);
}

void TcpTransport::Impl::Break(const Status& status) {
  if (broken.ok()) broken = status;
}

Status TcpTransport::Impl::Fail(const Status& status) {
  if (dead.ok()) dead = status;
  return dead;
}

Status TcpTransport::Impl::TakeHandedOver() {
  std::vector<std::pair<int, UniqueFd>> arrived;
  {
    const MutexLock lock(mutex);
    has_mail = false;
    if (!interrupted.ok()) return Fail(interrupted);
    arrived.swap(inbox);
  }
  for (auto& [peer, fd] : arrived) {
    Result<PeerLink*> link = LinkTo(peer);
    if (!link.ok()) return link.status();
    TFC_RETURN_IF_ERROR(WatchPeer(peer, fd.get()));
    link.value()->Adopt(std::move(fd));
    ExpectAnswers();  // the end of the handshake may be under way still
  }
  return Status::Ok();
}

Status TcpTransport::Impl::Watch(uint64_t id, int fd, uint32_t events) {
  epoll_event watched = {};
  watched.events = events;
  watched.data.u64 = id;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &watched) == 0) return Status::Ok();
  return Status::FromErrno("epoll_ctl", errno);
}

Status TcpTransport::Impl::WatchPeer(int peer, int fd) {
  const Status watched = Watch(static_cast<uint64_t>(peer), fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  return watched.ok() ? watched : Fail(Status(watched.code(), watched.message(), peer, watched.sys_errno()));
}

// The link to a peer; begins to connect to a lower rank.
Result<PeerLink*> TcpTransport::Impl::LinkTo(int peer) {
  std::unique_ptr<PeerLink>& link = links[static_cast<size_t>(peer)];
  if (link != nullptr) return link.get();
  link = std::make_unique<PeerLink>(peer, options.addresses[static_cast<size_t>(peer)],
                                    PeerLink::Options{options.self.generation, options.max_unexpected_bytes});
  used.push_back(link.get());
  if (peer > options.self.rank) return link.get();
  const Hello hello = {Purpose::kData, options.self.generation, options.self.rank, peer};
  TFC_RETURN_IF_ERROR(link->Connect(hello, options.key, Deadline::After(options.connect_seconds)));
  if (link->TakeNewFd()) TFC_RETURN_IF_ERROR(WatchPeer(peer, link->fd()));
  return link.get();
}

Result<Request*> TcpTransport::Impl::NewRequest(int peer, const Tag& tag, bool is_send, Ticket* ticket) {
  if (peer < 0 || peer >= options.self.size || peer == options.self.rank) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(options.self.rank) + " of " +
                                              std::to_string(options.self.size) +
                                              " cannot exchange messages with rank " + std::to_string(peer));
  }
  Request* request = requests.Acquire(ticket);
  request->peer = peer;
  request->tag = tag;
  request->is_send = is_send;
  return request;
}

// The end of a post: bad arguments leave the transport alive, everything else ends it.
Status TcpTransport::Impl::Finish(const Status& status, Ticket ticket) {
  if (status.ok()) return status;
  requests.Release(ticket);
  return status.code() == Code::kInvalidArgument ? status : Fail(status);
}

void TcpTransport::Impl::PumpReady(bool* progress) {
  for (PeerLink* link : used) {
    if (!link->Ready()) continue;
    Break(link->Pump(false, progress));
    if (link->TakeNewFd()) Break(WatchPeer(link->peer(), link->fd()));
  }
  if (*progress) NoteTraffic();
}

void TcpTransport::Impl::PumpEagerly(int peer, bool* progress) {
  PeerLink& link = *links[static_cast<size_t>(peer)];
  Break(link.Pump(true, progress));
  if (link.TakeNewFd()) Break(WatchPeer(peer, link.fd()));
  if (*progress) NoteTraffic();
}

void TcpTransport::Impl::NoteTraffic() {
  news = true;
  ExpectAnswers();
}

void TcpTransport::Impl::ExpectAnswers() {
  if (std::exchange(unanswered, true)) return;
  next_look = Deadline::After(AckWatch::kSeconds);
}

// A host that has vanished says nothing, so it has to be looked for; only while something awaits its answer.
void TcpTransport::Impl::LookAtHosts() {
  unanswered = false;
  for (PeerLink* link : used) Break(link->LookAtHost(&unanswered));
  next_look = Deadline::After(AckWatch::kSeconds);
}

Deadline TcpTransport::Impl::EarliestOf(Deadline deadline) const {
  if (unanswered) deadline = deadline.Earlier(next_look);
  for (const PeerLink* link : used) {
    if (link->state() == PeerLink::State::kConnecting) deadline = deadline.Earlier(link->connect_deadline());
  }
  return deadline;
}

Status TcpTransport::Impl::WaitForEvents(int millis, int* count) {
  *count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), millis);
  if (*count >= 0) return Status::Ok();
  *count = 0;
  return errno == EINTR ? Status::Ok() : Fail(Status::FromErrno("epoll_wait", errno));
}

// Where peers take longer than spin_us, or cannot answer because this thread has their core, spinning only costs: after
// every spin in vain it is tried more rarely, until one finds something.
bool TcpTransport::Impl::SpinPays() {
  if (sleeps_to_skip > 0) --sleeps_to_skip;
  return options.spin_us > 0 && sleeps_to_skip == 0;
}

Status TcpTransport::Impl::Spin(Deadline deadline, int* count) {
  const Deadline end = Deadline::At(Deadline::Clock::now() + std::chrono::microseconds(options.spin_us));
  do {
    TFC_RETURN_IF_ERROR(WaitForEvents(0, count));
    if (*count == 0 && deadline.Passed()) return Status::Ok();  // too early to say
  } while (*count == 0 && !end.Passed());
  vain_spins = *count > 0 ? 0 : std::min(vain_spins + 1, kMostVainSpins);
  sleeps_to_skip = *count > 0 ? 0 : 1 << vain_spins;
  return Status::Ok();
}

void TcpTransport::Impl::Dispatch(int count) {
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kWakeId) {
      wake.Drain();
      if (has_wake.exchange(false)) news = true;
    } else if (event.data.u64 == kBellId) {
      options.bell->Drain();
      news = true;
    } else {
      links[event.data.u64]->Notice(event.events);
    }
  }
}

// Waits until epoll has news or the deadline has passed, then moves what can be moved.
Status TcpTransport::Impl::Sleep(Deadline deadline, bool spin, bool* progress) {
  const Deadline earliest = EarliestOf(deadline);
  int count = 0;
  if (spin && SpinPays()) TFC_RETURN_IF_ERROR(Spin(earliest, &count));
  if (count == 0) TFC_RETURN_IF_ERROR(WaitForEvents(earliest.LeftMillis(kLongestSleepMillis), &count));
  Dispatch(count);
  TFC_RETURN_IF_ERROR(Enter());
  for (PeerLink* link : used) {
    if (link->state() == PeerLink::State::kConnecting && link->connect_deadline().Passed()) link->Notice(EPOLLOUT);
  }
  if (unanswered && next_look.Passed()) LookAtHosts();
  PumpReady(progress);
  return Status::Ok();
}

Status TcpTransport::Impl::TimedOut(const Request& request) const {
  return Status(Code::kDeadlineExceeded, links[static_cast<size_t>(request.peer)]->Missing(request), request.peer);
}

TcpTransport::TcpTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpTransport::~TcpTransport() = default;

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(const TcpTransportOptions& options) {
  TFC_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<TcpTransport> transport(new TcpTransport(std::make_unique<Impl>(options)));
  TFC_RETURN_IF_ERROR(transport->impl_->Open());
  return transport;
}

int TcpTransport::rank() const { return impl_->options.self.rank; }
int TcpTransport::size() const { return impl_->options.self.size; }

Result<Ticket> TcpTransport::PostSend(int peer, const Tag& tag, const ConstSpans& spans) {
  impl_->driver.AssertHeld();
  TFC_RETURN_IF_ERROR(impl_->EnterPost());
  Ticket ticket = 0;
  Result<Request*> request = impl_->NewRequest(peer, tag, true, &ticket);
  if (!request.ok()) return request.status();
  request.value()->cursor.Assign(spans);
  Result<PeerLink*> link = impl_->LinkTo(peer);
  Status status = link.status();
  bool sent = false;
  if (status.ok()) status = link.value()->PostSend(request.value(), &sent);
  if (sent) impl_->NoteTraffic();
  TFC_RETURN_IF_ERROR(impl_->Finish(status, ticket));
  return ticket;
}

Result<Ticket> TcpTransport::PostReceive(int peer, const Tag& tag, const MutableSpans& spans) {
  impl_->driver.AssertHeld();
  TFC_RETURN_IF_ERROR(impl_->EnterPost());
  Ticket ticket = 0;
  Result<Request*> request = impl_->NewRequest(peer, tag, false, &ticket);
  if (!request.ok()) return request.status();
  request.value()->cursor.Assign(spans);
  Result<PeerLink*> link = impl_->LinkTo(peer);
  Status status = link.status();
  bool sent = false;
  if (status.ok()) status = link.value()->PostReceive(request.value(), &sent);
  if (sent) impl_->NoteTraffic();
  TFC_RETURN_IF_ERROR(impl_->Finish(status, ticket));
  return ticket;
}

Status TcpTransport::Wait(Ticket ticket, Deadline deadline) {
  impl_->driver.AssertHeld();
  TFC_RETURN_IF_ERROR(impl_->Enter());
  Request* request = impl_->requests.Find(ticket);
  if (request == nullptr) return Status(Code::kInvalidArgument, "no such ticket");
  const int peer = request->peer;
  while (!request->done) {
    bool progress = false;
    impl_->PumpReady(&progress);
    if (!progress) impl_->PumpEagerly(peer, &progress);
    if (request->done) break;
    if (!impl_->broken.ok()) return impl_->Fail(impl_->broken);
    if (!progress && deadline.Passed()) return impl_->Fail(impl_->TimedOut(*request));
    TFC_RETURN_IF_ERROR(progress ? impl_->Enter() : impl_->Sleep(deadline, true, &progress));
  }
  impl_->requests.Release(ticket);
  return Status::Ok();
}

Result<bool> TcpTransport::Test(Ticket ticket) {
  impl_->driver.AssertHeld();
  TFC_RETURN_IF_ERROR(impl_->Enter());
  const Request* request = impl_->requests.Find(ticket);
  if (request == nullptr) return Status(Code::kInvalidArgument, "no such ticket");
  if (request->done) return true;
  int count = 0;
  bool progress = false;
  TFC_RETURN_IF_ERROR(impl_->WaitForEvents(0, &count));
  impl_->Dispatch(count);
  TFC_RETURN_IF_ERROR(impl_->Enter());
  impl_->PumpReady(&progress);
  if (!request->done && !impl_->broken.ok()) return impl_->Fail(impl_->broken);
  return request->done;
}

Status TcpTransport::Poll(Deadline deadline, bool spin) {
  impl_->driver.AssertHeld();
  TFC_RETURN_IF_ERROR(impl_->Enter());
  bool progress = false;
  impl_->PumpReady(&progress);
  while (!impl_->news && impl_->broken.ok() && !deadline.Passed()) {
    TFC_RETURN_IF_ERROR(impl_->Sleep(deadline, spin, &progress));
  }
  const bool had_news = std::exchange(impl_->news, false);
  return had_news || impl_->broken.ok() ? Status::Ok() : impl_->Fail(impl_->broken);
}

void TcpTransport::Wake() {
  impl_->has_wake = true;
  impl_->wake.Signal();
}

void TcpTransport::Interrupt(const Status& status) { impl_->Interrupt(status); }

Status TcpTransport::AddConnection(int peer, UniqueFd fd) { return impl_->AddConnection(peer, std::move(fd)); }

}  // namespace tfc
