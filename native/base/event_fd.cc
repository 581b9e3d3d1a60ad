#include "base/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace tfc {

Result<EventFd> EventFd::Create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return Status::FromErrno("eventfd", errno);
  return EventFd(std::move(fd));
}

void EventFd::Signal() const {
  const int saved = errno;
  const uint64_t one = 1;
  // The only failure is a full counter, which is as readable as it can be.
  while (fd_.valid() && ::write(fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  errno = saved;
}

bool EventFd::Drain() const {
  uint64_t count = 0;
  return fd_.valid() && ::read(fd_.get(), &count, sizeof(count)) == static_cast<ssize_t>(sizeof(count));
}

}  // namespace tfc
