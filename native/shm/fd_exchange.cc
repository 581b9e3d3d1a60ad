#include "shm/fd_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/sha256.h"

namespace tfc {
namespace {

constexpr double kClientSeconds = 5.0;  // a stranger may hold the server up for that long
constexpr char kPrefix[] = "tfcollective-";

struct Proof {
  std::array<uint8_t, 16> nonce;
  Digest digest;
};

Digest MakeDigest(const ExchangeKey& key, const char* role, const std::array<uint8_t, 16>& nonce,
                  const std::string& name) {
  HmacSha256 hmac(key.data(), key.size());
  hmac.Update(role, std::strlen(role)).Update(nonce.data(), nonce.size()).Update(name.data(), name.size());
  return hmac.Finish();
}

socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), size);  // a leading NUL makes it abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

// Waits until `fd` is ready for `events`.
Status WaitReady(int fd, short events, int cancel_fd, Deadline deadline) {
  while (true) {
    pollfd watched[2] = {{fd, events, 0}, {cancel_fd, POLLIN, 0}};
    const int ready = ::poll(watched, cancel_fd >= 0 ? 2 : 1, deadline.LeftMillis(1 << 30));
    if (ready < 0 && errno != EINTR) return Status::FromErrno("poll", errno);
    if (ready > 0 && watched[1].revents != 0 && cancel_fd >= 0) return Status(Code::kCancelled, "cancelled");
    if (ready > 0) return Status::Ok();
    if (deadline.Passed()) return Status(Code::kDeadlineExceeded, "no answer on the node's Unix socket");
  }
}

Status ReadExactly(int fd, void* data, size_t size, int cancel_fd, Deadline deadline) {
  auto* bytes = static_cast<char*>(data);
  for (size_t done = 0; done < size;) {
    TFC_RETURN_IF_ERROR(WaitReady(fd, POLLIN, cancel_fd, deadline));
    const ssize_t got = ::recv(fd, bytes + done, size - done, MSG_DONTWAIT);
    if (got == 0) return Status(Code::kPeerLost, "the other side closed the node's Unix socket");
    if (got < 0 && errno != EINTR && errno != EAGAIN) return Status::FromErrno("recv", errno);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return Status::Ok();
}

bool SameUser(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == ::geteuid();
}

// The descriptor travels with the digest that proves the server.
Status SendWithFd(int socket, const Digest& digest, int fd) {
  iovec data{const_cast<uint8_t*>(digest.data()), digest.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(digest.size()))
    return Status::FromErrno("sendmsg", errno);
  return Status::Ok();
}

Result<UniqueFd> ReceiveWithFd(int socket, Digest* digest) {
  iovec data{digest->data(), digest->size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return Status::FromErrno("recvmsg", errno);
  UniqueFd fd;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int raw = -1;
    std::memcpy(&raw, CMSG_DATA(header), sizeof(int));
    fd = UniqueFd(raw);
  }
  if (got == 0) return Status(Code::kPeerLost, "the node's leader closed its Unix socket");
  if (got != static_cast<ssize_t>(digest->size()) || !fd.valid())
    return Status(Code::kProtocol, "the node's leader answered with something else than shared memory");
  return fd;
}

Status ServeOne(int client, int fd, const std::string& name, const ExchangeKey& key, int cancel_fd, Deadline deadline) {
  if (!SameUser(client)) return Status(Code::kProtocol, "a process of another user asked for shared memory");
  Proof proof{};
  TFC_RETURN_IF_ERROR(ReadExactly(client, &proof, sizeof(proof), cancel_fd, deadline));
  if (!ConstantTimeEqual(proof.digest, MakeDigest(key, "client", proof.nonce, name)))
    return Status(Code::kProtocol, "a process with another job key asked for shared memory");
  return SendWithFd(client, MakeDigest(key, "server", proof.nonce, name), fd);
}

}  // namespace

Result<FdServer> FdServer::Create() {
  std::array<uint8_t, 16> random{};
  TFC_RETURN_IF_ERROR(FillRandom(random.data(), random.size()));
  std::string name = kPrefix;
  for (uint8_t byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Status::FromErrno("socket", errno);
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return Status::FromErrno("bind", errno);
  if (::listen(socket.get(), 1024) != 0) return Status::FromErrno("listen", errno);
  return FdServer(std::move(socket), std::move(name));
}

Status FdServer::Serve(int fd, int clients, const ExchangeKey& key, int cancel_fd, Deadline deadline) {
  for (int served = 0; served < clients;) {
    TFC_RETURN_IF_ERROR(WaitReady(socket_.get(), POLLIN, cancel_fd, deadline));
    UniqueFd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      return Status::FromErrno("accept", errno);
    }
    const Status status =
        ServeOne(client.get(), fd, name_, key, cancel_fd, deadline.Earlier(Deadline::After(kClientSeconds)));
    if (status.ok()) ++served;
    if (status.code() == Code::kCancelled) return status;
  }
  return Status::Ok();
}

Result<UniqueFd> FetchFd(const std::string& name, const ExchangeKey& key, int cancel_fd, Deadline deadline) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Status::FromErrno("socket", errno);
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0)
    return Status::FromErrno("connect to the node's leader", errno);
  if (!SameUser(socket.get())) return Status(Code::kProtocol, "the node's leader belongs to another user");
  Proof proof{};
  TFC_RETURN_IF_ERROR(FillRandom(proof.nonce.data(), proof.nonce.size()));
  proof.digest = MakeDigest(key, "client", proof.nonce, name);
  if (::send(socket.get(), &proof, sizeof(proof), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(proof)))
    return Status::FromErrno("send", errno);
  TFC_RETURN_IF_ERROR(WaitReady(socket.get(), POLLIN, cancel_fd, deadline));
  Digest digest;
  auto fd = ReceiveWithFd(socket.get(), &digest);
  if (!fd.ok()) return fd;
  if (!ConstantTimeEqual(digest, MakeDigest(key, "server", proof.nonce, name)))
    return Status(Code::kProtocol, "the node's leader has another job key");
  return fd;
}

}  // namespace tfc
