#include "transport/tcp/acceptor.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <string>
#include <utility>

#include "transport/tcp/socket_options.h"

namespace tfc {
namespace {

constexpr double kPauseSeconds = 0.1;  // after accept failed for want of descriptors

int Control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, operation, fd, &event);
}

uint32_t EventsFor(HandshakeWants wants) { return wants == HandshakeWants::kWrite ? EPOLLOUT : EPOLLIN; }

}  // namespace

Acceptor::Acceptor(TcpListener listener, const AcceptorOptions& options)
    : listener_(std::move(listener)), options_(options), refusals_(options.log) {}

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
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    if (fd == listener_.fd()) {
      AcceptAll();
    } else if (fd == timer_.get()) {
      Expire(&accepted);
    } else {
      AdvanceOne(fd, &accepted);
    }
  }
  ArmTimer();
  return accepted;
}

void Acceptor::AcceptAll() {
  while (true) {
    Result<TcpListener::Incoming> incoming = listener_.Accept();
    if (!incoming.ok()) return PauseListening(incoming.status());
    if (!incoming.value().fd.valid()) return;
    Admit(incoming.Take());
  }
}

void Acceptor::Admit(TcpListener::Incoming incoming) {
  if (handshakes_.size() >= options_.max_handshakes) DropOldest();
  const int fd = incoming.fd.get();
  Status status = ConfigureConnection(fd);
  if (status.ok() && Control(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN) != 0)
    status = Status::FromErrno("epoll_ctl", errno);
  if (!status.ok()) return refusals_.Note(status.WithContext("a connection could not be taken").message());
  handshakes_.emplace(fd, ServerHandshake(std::move(incoming.fd), incoming.from, options_.key, options_.self,
                                          Deadline::After(options_.handshake_seconds)));
}

void Acceptor::DropOldest() {
  const auto oldest = std::min_element(handshakes_.begin(), handshakes_.end(), [](const auto& a, const auto& b) {
    return a.second.deadline().when() < b.second.deadline().when();
  });
  if (oldest == handshakes_.end()) return;
  refusals_.Note("too many connections wait for their handshake: dropped the oldest");
  handshakes_.erase(oldest);
}

void Acceptor::AdvanceOne(int fd, std::vector<Accepted>* accepted) {
  const auto found = handshakes_.find(fd);
  if (found == handshakes_.end()) return;
  const Result<HandshakeWants> wants = found->second.Advance();
  if (!wants.ok()) {
    refusals_.Note(wants.status().message());
    handshakes_.erase(found);
  } else if (wants.value() == HandshakeWants::kNothing) {
    Control(epoll_.get(), EPOLL_CTL_DEL, fd, 0);
    accepted->push_back(Accepted{found->second.hello(), found->second.TakeFd()});
    handshakes_.erase(found);
  } else {
    Control(epoll_.get(), EPOLL_CTL_MOD, fd, EventsFor(wants.value()));
  }
}

void Acceptor::Expire(std::vector<Accepted>* accepted) {
  uint64_t expirations = 0;
  // Only to make the timer unreadable; how often it fired does not matter.
  if (::read(timer_.get(), &expirations, sizeof(expirations)) > 0) timer_armed_ = false;
  if (!listening_) listening_ = Control(epoll_.get(), EPOLL_CTL_ADD, listener_.fd(), EPOLLIN) == 0;
  std::vector<int> late;
  for (const auto& [fd, handshake] : handshakes_) {
    if (handshake.deadline().Passed()) late.push_back(fd);
  }
  for (const int fd : late) AdvanceOne(fd, accepted);
}

// Without this the waiting connection would keep the descriptor readable and the thread busy.
void Acceptor::PauseListening(const Status& reason) {
  refusals_.Note(reason.WithContext("no new connections for a moment").message());
  if (Control(epoll_.get(), EPOLL_CTL_DEL, listener_.fd(), 0) == 0) listening_ = false;
}

// One timer for the earliest thing to come. It is not moved when something even earlier appears
// only because all handshakes last equally long; after a pause it is set anew.
void Acceptor::ArmTimer() {
  if (handshakes_.empty() && listening_) return;
  if (timer_armed_ && listening_) return;
  double seconds = listening_ ? options_.handshake_seconds : kPauseSeconds;
  for (const auto& [fd, handshake] : handshakes_) seconds = std::min(seconds, handshake.deadline().Left());
  seconds = std::max(seconds, 1e-3) + 1e-3;  // zero would disarm it; late enough that Passed() is true
  itimerspec spec = {};
  spec.it_value.tv_sec = static_cast<time_t>(seconds);
  spec.it_value.tv_nsec = static_cast<long>(std::fmod(seconds, 1.0) * 1e9);
  timer_armed_ = ::timerfd_settime(timer_.get(), 0, &spec, nullptr) == 0;
}

}  // namespace tfc
