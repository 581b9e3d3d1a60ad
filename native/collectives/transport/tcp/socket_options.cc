#include "collectives/transport/tcp/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "base/fork_guard.h"

namespace tfc {
namespace {

struct Option {
  int level;
  int name;
  int value;
  const char* text;
};

// No buffer sizes: setting them would switch the kernel's autotuning off. No TCP_USER_TIMEOUT: it ends connections to
// live peers that do not read for a while (see ack_watch.h).
constexpr Option kOptions[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"},   {SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"},
    {IPPROTO_TCP, TCP_KEEPIDLE, 5, "TCP_KEEPIDLE"}, {IPPROTO_TCP, TCP_KEEPINTVL, 2, "TCP_KEEPINTVL"},
    {IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT"},
};

}  // namespace

Status ConfigureConnection(int fd) {
  for (const Option& option : kOptions) {
    if (::setsockopt(fd, option.level, option.name, &option.value, sizeof(option.value)) != 0) {
      return Status::FromErrno(std::string("setsockopt ") + option.text, errno);
    }
  }
  CloseInForks(fd);
  return Status::Ok();
}

}  // namespace tfc
