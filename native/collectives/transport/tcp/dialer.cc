#include "collectives/transport/tcp/dialer.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

namespace tfc {
namespace {

constexpr double kFirstPauseSeconds = 0.02;
constexpr double kLongestPauseSeconds = 1.0;

// A network that has just come up, or a neighbour that has not answered yet, says so for a while.
bool HasNoRoute(int err) { return err == EHOSTUNREACH || err == ENETUNREACH || err == EHOSTDOWN || err == ENETDOWN; }

// The connection ended before the peer had said anything against it.
bool GotLost(const Status& status) {
  const int err = status.sys_errno();
  return status.code() == Code::kPeerLost &&
         (err == 0 || err == ECONNRESET || err == ECONNABORTED || err == EPIPE || err == ETIMEDOUT || HasNoRoute(err));
}

// Between half of what doubles with each attempt and the whole of it.
Result<double> PauseAfter(int attempts) {
  uint32_t random = 0;
  TFC_RETURN_IF_ERROR(FillRandom(&random, sizeof(random)));
  const double longest = std::min(kLongestPauseSeconds, kFirstPauseSeconds * std::exp2(std::min(attempts, 16)));
  return longest * (0.5 + random / static_cast<double>(UINT32_MAX) / 2);
}

}  // namespace

Dialer::Dialer(const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline)
    : to_(to), hello_(hello), key_(key), deadline_(deadline), next_(Deadline::At({})) {}

Result<HandshakeWants> Dialer::Advance() {
  if (!attempt_ && !next_.Passed()) return HandshakeWants::kTime;
  Result<HandshakeWants> wants = Attempt();
  if (wants.ok()) return wants;
  if (wants.status().code() == Code::kDeadlineExceeded && attempts_ > 1) return GiveUp(wants.status());
  if (!GotLost(wants.status())) return wants;
  TFC_RETURN_IF_ERROR(Pause(wants.status()));
  return HandshakeWants::kTime;
}

Result<HandshakeWants> Dialer::Attempt() {
  if (!attempt_) {
    ++attempts_;
    Result<ClientHandshake> started = ClientHandshake::Start(to_, hello_, key_, deadline_);
    if (!started.ok()) return started.status();
    attempt_.emplace(started.Take());
  }
  return attempt_->Advance();
}

Status Dialer::Pause(const Status& lost) {
  attempt_.reset();
  const Result<double> seconds = PauseAfter(attempts_ - 1);
  if (!seconds.ok()) return seconds.status();
  next_ = Deadline::After(seconds.value());
  if (next_.when() < deadline_.when()) return Status::Ok();
  return GiveUp(lost);
}

Status Dialer::GiveUp(const Status& last) const {
  return Status(Code::kDeadlineExceeded,
                last.message() + " (" + std::to_string(attempts_) + (attempts_ == 1 ? " attempt)" : " attempts)"),
                last.peer(), last.sys_errno());
}

namespace {

// Sleeps until it can go on; CANCELLED when `cancel_fd` is readable.
Status WaitFor(HandshakeWants wants, const Dialer& dialer, int cancel_fd) {
  pollfd fds[2] = {{dialer.fd(), static_cast<short>(wants == HandshakeWants::kWrite ? POLLOUT : POLLIN), 0},
                   {cancel_fd, POLLIN, 0}};  // poll ignores negative descriptors
  constexpr int kLongestSleepMillis = 60 * 1000;
  if (::poll(fds, 2, dialer.wake().LeftMillis(kLongestSleepMillis)) < 0 && errno != EINTR) {
    return Status::FromErrno("poll", errno);
  }
  if (fds[1].revents != 0) return Status(Code::kCancelled, "connecting was cancelled");
  return Status::Ok();
}

}  // namespace

Result<UniqueFd> Connect(const SocketAddress& to, const Hello& hello, const JobKey& key, Deadline deadline,
                         int cancel_fd) {
  Dialer dialer(to, hello, key, deadline);
  while (true) {
    const Result<HandshakeWants> wants = dialer.Advance();
    if (!wants.ok()) return wants.status();
    if (wants.value() == HandshakeWants::kNothing) return dialer.TakeFd();
    TFC_RETURN_IF_ERROR(WaitFor(wants.value(), dialer, cancel_fd));
  }
}

}  // namespace tfc
