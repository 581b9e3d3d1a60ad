#include "backends/cpu/transport/tcp/tcp_listener.h"

#include <sys/socket.h>

#include <cerrno>

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

}  // namespace

Result<TcpListener> TcpListener::Create(const std::string& host) {
  Result<SocketAddress> wanted = SocketAddress::FromHost(host, 0);
  if (!wanted.ok()) return wanted.status();
  UniqueFd fd(::socket(wanted.value().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::FromErrno("socket", errno);
  if (::bind(fd.get(), wanted.value().raw(), wanted.value().raw_size()) != 0) {
    return Status::FromErrno("bind to " + host, errno);
  }
  if (::listen(fd.get(), kBacklog) != 0) return Status::FromErrno("listen on " + host, errno);
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
