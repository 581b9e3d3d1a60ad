#include "collectives/transport/tcp/tcp_listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

namespace tfc {
namespace {

constexpr int kBacklog = 4096;  // peers that wait to be accepted; the kernel lowers it to its own limit

// Errors of the connection that waited, not of the listener: accept(2), "Error handling".
bool IsOfConnection(int err) {
  switch (err) {
    case EINTR:
    case ECONNABORTED:
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EPERM:
      return true;
    default:
      return false;
  }
}

// A socket that listens at this address; not valid if another one uses the port.
Result<UniqueFd> ListenAt(const SocketAddress& wanted) {
  UniqueFd fd(::socket(wanted.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::FromErrno("socket", errno);
  // A port that is wanted is free although connections of an earlier process have yet to expire.
  const int reuse = 1;
  if (wanted.port() != 0 && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) != 0)
    return Status::FromErrno("setsockopt", errno);
  if (::bind(fd.get(), wanted.raw(), wanted.raw_size()) != 0) {
    if (errno == EADDRINUSE) return UniqueFd();
    return Status::FromErrno("bind to " + wanted.ToString(), errno);
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) return UniqueFd();  // another process was faster between the two calls
    return Status::FromErrno("listen on " + wanted.ToString(), errno);
  }
  return fd;
}

Result<UniqueFd> ListenInRange(const std::string& host, PortRange ports) {
  for (uint32_t port = ports.low; port <= ports.high; ++port) {
    Result<SocketAddress> wanted = SocketAddress::FromHost(host, static_cast<uint16_t>(port));
    if (!wanted.ok()) return wanted.status();
    Result<UniqueFd> fd = ListenAt(wanted.value());
    if (!fd.ok() || fd.value().valid()) return fd;
  }
  const std::string range = std::to_string(ports.low) + "-" + std::to_string(ports.high);
  return Status::FromErrno("bind to " + host + ", ports " + range +
                               " (--port-range needs a free port for each rank of a host and one for the coordinator)",
                           EADDRINUSE);
}

}  // namespace

Result<TcpListener> TcpListener::Create(const std::string& host, PortRange ports) {
  Result<UniqueFd> found = ListenInRange(host, ports);
  if (!found.ok()) return found.status();
  UniqueFd fd = found.Take();
  Result<SocketAddress> bound = SocketAddress::LocalOf(fd.get());
  if (!bound.ok()) return bound.status();
  return TcpListener(std::move(fd), bound.value());
}

Result<TcpListener::Incoming> TcpListener::Accept() const {
  while (true) {
    sockaddr_storage storage = {};
    socklen_t size = sizeof(storage);
    UniqueFd fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&storage), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      Result<SocketAddress> from = SocketAddress::FromRaw(reinterpret_cast<const sockaddr*>(&storage), size);
      if (!from.ok()) return from.status();
      return Incoming{std::move(fd), from.value()};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Incoming{};
    if (!IsOfConnection(errno)) return Status::FromErrno("accept", errno);
  }
}

}  // namespace tfc
