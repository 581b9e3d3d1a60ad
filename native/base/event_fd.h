// A descriptor that one thread makes readable to wake another one out of poll or epoll.
#ifndef TFCOLLECTIVE_BASE_EVENT_FD_H_
#define TFCOLLECTIVE_BASE_EVENT_FD_H_

#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tfc {

class EventFd {
 public:
  EventFd() = default;  // no descriptor: Signal and Drain do nothing
  static Result<EventFd> Create();
  explicit EventFd(UniqueFd fd) : fd_(std::move(fd)) {}  // one that another process has made and sent

  int fd() const { return fd_.get(); }
  // Makes it readable until the next Drain. Never blocks; any thread; safe in a signal handler.
  void Signal() const;
  // True if it was signalled since the last Drain.
  bool Drain() const;

 private:
  UniqueFd fd_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_EVENT_FD_H_
