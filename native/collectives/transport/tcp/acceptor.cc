#include "collectives/transport/tcp/acceptor.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "collectives/transport/tcp/socket_options.h"

namespace tfc {
namespace {

constexpr double kPauseSeconds = 0.1;  // after accept failed for want of descriptors
constexpr int kAcceptsAtOnce = 64;     // then the handshakes under way, and the thread's other work, have their turn

int Control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, operation, fd, &event);
}

uint32_t EventsFor(HandshakeWants wants) { return wants == HandshakeWants::kWrite ? EPOLLOUT : EPOLLIN; }

}  // namespace

Acceptor::Acceptor(TcpListener listener, const AcceptorOptions& options)
    : listener_(std::move(listener)),
      options_(options),
      limit_(options.spare_handshakes + static_cast<size_t>(std::max(options.self.size, 1))),
      refusals_(options.log) {}

Acceptor::~Acceptor() = default;

Result<std::unique_ptr<Acceptor>> Acceptor::Create(TcpListener listener, const AcceptorOptions& options) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(listener), options));
  TFC_RETURN_IF_ERROR(acceptor->Open());
  return acceptor;
}

Status Acceptor::Open() {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return Status::FromErrno("epoll_create1", errno);
  timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) return Status::FromErrno("timerfd_create", errno);
  if (Control(epoll_.get(), EPOLL_CTL_ADD, listener_.fd(), EPOLLIN) != 0 ||
      Control(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), EPOLLIN) != 0) {
    return Status::FromErrno("epoll_ctl", errno);
  }
  return Status::Ok();
}

Result<std::vector<Accepted>> Acceptor::Advance() {
  std::vector<Accepted> accepted;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count < 0 && errno != EINTR) return Status::FromErrno("epoll_wait", errno);
  bool waiting = false;
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    uint64_t expirations = 0;
    if (fd == listener_.fd()) {
      waiting = true;
    } else if (fd != timer_.get()) {
      AdvanceOne(fd, &accepted);
    } else if (::read(fd, &expirations, sizeof(expirations)) > 0) {
      timer_for_.reset();
    }
  }
  Expire(&accepted);
  if (waiting) AcceptSome(&accepted);
  WatchListener();
  ArmTimer();
  return accepted;
}

void Acceptor::AcceptSome(std::vector<Accepted>* accepted) {
  for (int i = 0; i < kAcceptsAtOnce && !crowded(); ++i) {
    Result<TcpListener::Incoming> incoming = listener_.Accept();
    if (!incoming.ok()) return PauseAccepting(incoming.status());
    if (!incoming.value().fd.valid()) return;
    Admit(incoming.Take(), accepted);
  }
}

void Acceptor::Admit(TcpListener::Incoming incoming, std::vector<Accepted>* accepted) {
  const int fd = incoming.fd.get();
  Status status = ConfigureConnection(fd);
  if (status.ok() && Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN) != 0)
    status = Status::FromErrno("epoll_ctl", errno);
  if (!status.ok()) return refusals_.Note(status.WithContext("a connection could not be taken").message());
  ServerHandshake handshake(std::move(incoming.fd), incoming.from, options_.key, options_.self);
  guests_.emplace(
      fd, Guest{std::move(handshake), Deadline::Clock::now(), queue_.insert(queue_.end(), fd), HandshakeWants::kRead});
  AdvanceOne(fd, accepted);  // its HELLO has probably come
}

void Acceptor::AdvanceOne(int fd, std::vector<Accepted>* accepted) {
  const auto found = guests_.find(fd);
  if (found != guests_.end()) Settle(found, accepted);
}

// Goes on with a handshake, and removes it if it has ended. True if it has ended, or the peer has answered.
bool Acceptor::Settle(Guests::iterator guest, std::vector<Accepted>* accepted) {
  ServerHandshake& handshake = guest->second.handshake;
  const bool had_said_hello = handshake.said_hello();
  const Result<HandshakeWants> wants = handshake.Advance();
  if (!wants.ok()) {
    refusals_.Note(wants.status().message());
    Remove(guest);
    return true;
  }
  if (wants.value() == HandshakeWants::kNothing) {
    Control(epoll_.get(), EPOLL_CTL_DEL, guest->first, 0);
    accepted->push_back(Accepted{handshake.hello(), handshake.TakeFd()});
    Remove(guest);
    return true;
  }
  if (std::exchange(guest->second.watched, wants.value()) != wants.value())
    Control(epoll_.get(), EPOLL_CTL_MOD, guest->first, EventsFor(wants.value()));
  if (had_said_hello == handshake.said_hello()) return false;
  guest->second.since = Deadline::Clock::now();
  queue_.splice(queue_.end(), queue_, guest->second.place);
  return true;
}

void Acceptor::Remove(Guests::iterator guest) {
  queue_.erase(guest->second.place);
  guests_.erase(guest);
}

Acceptor::Time Acceptor::LimitOf(const Guest& guest) const {
  return guest.since + Deadline::Seconds(crowded() ? options_.crowded_seconds : options_.handshake_seconds);
}

// What has arrived in time counts, even if this thread comes to it only now.
void Acceptor::Expire(std::vector<Accepted>* accepted) {
  const Time now = Deadline::Clock::now();
  if (paused_until_ && now >= *paused_until_) paused_until_.reset();
  while (!queue_.empty()) {
    const auto oldest = guests_.find(queue_.front());
    if (now < LimitOf(oldest->second)) return;
    if (Settle(oldest, accepted)) continue;
    const char* why = crowded() ? "it was slow in its handshake, and other connections wait for a place"
                                : "it did not finish the handshake in time";
    refusals_.Note(oldest->second.handshake.Refusal(Status(Code::kDeadlineExceeded, why)).message());
    Remove(oldest);
  }
}

void Acceptor::PauseAccepting(const Status& reason) {
  refusals_.Note(reason.WithContext("no new connections for a moment").message());
  paused_until_ = Deadline::Clock::now() + Deadline::Seconds(kPauseSeconds);
}

// A listener that is watched while nothing is accepted would keep the thread busy.
void Acceptor::WatchListener() {
  if (listening_ == !crowded()) return;
  if (Control(epoll_.get(), EPOLL_CTL_MOD, listener_.fd(), listening_ ? 0u : uint32_t{EPOLLIN}) == 0)
    listening_ = !listening_;
}

// One timer for the earliest thing to come. One that is set for something earlier stays: it fires for nothing once.
void Acceptor::ArmTimer() {
  std::optional<Time> next = paused_until_;
  if (!queue_.empty()) {
    const Time limit = LimitOf(guests_.find(queue_.front())->second);
    next = next ? std::min(*next, limit) : limit;
  }
  if (!next || (timer_for_ && *timer_for_ <= *next)) return;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(next->time_since_epoch()).count();
  itimerspec spec = {};  // of CLOCK_MONOTONIC, which is the steady clock; never zero, which would disarm it
  spec.it_value.tv_sec = static_cast<time_t>(nanoseconds / 1000000000);
  spec.it_value.tv_nsec = static_cast<long>(nanoseconds % 1000000000);
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr) == 0) timer_for_ = next;
}

}  // namespace tfc
