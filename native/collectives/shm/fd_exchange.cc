#include "collectives/shm/fd_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/sha256.h"

namespace tfc {
namespace {

// How long a process may take to prove the key, and how long while as many as may wait do: those beyond them stay in
// the kernel's queue.
constexpr double kClientSeconds = 5.0;
constexpr double kCrowdedSeconds = 0.5;
constexpr size_t kMaxWaiting = 256;
constexpr double kRetrySeconds = 0.02;  // after the server's queue was full, or too many descriptors were on their way
constexpr double kPauseSeconds = 0.1;   // after accept failed for want of descriptors or memory
constexpr char kPrefix[] = "tfcollective-";
constexpr size_t kFdsPerMessage = 250;  // the kernel takes 253

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

bool SameUser(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == ::geteuid();
}

using Control = std::array<char, CMSG_SPACE(kFdsPerMessage * sizeof(int))>;

// One message: the digest that proves the server, and with it `count` descriptors. False, with errno, if it was not
// sent.
bool SendWithFds(int socket, const Digest& digest, const int* fds, size_t count) {
  iovec data{const_cast<uint8_t*>(digest.data()), digest.size()};
  alignas(cmsghdr) Control control = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(digest.size());
}

// Appends the descriptors of one message.
Status ReceiveWithFds(int socket, Digest* digest, std::vector<UniqueFd>* fds) {
  iovec data{digest->data(), digest->size()};
  alignas(cmsghdr) Control control = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return Status::FromErrno("recvmsg", errno);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  const bool has_fds = header != nullptr && header->cmsg_type == SCM_RIGHTS;
  for (size_t at = CMSG_LEN(0); has_fds && at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
    int raw = -1;
    std::memcpy(&raw, reinterpret_cast<const char*>(header) + at, sizeof(int));
    fds->emplace_back(raw);
  }
  if (got == 0) return Status(Code::kPeerLost, "the node's leader closed its Unix socket");
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return Status(Code::kResourceExhausted,
                  "this process may open no more files: raise the limit on open files (ulimit -n)");
  if (got != static_cast<ssize_t>(digest->size()) || !has_fds)
    return Status(Code::kProtocol, "the node's leader answered with something else than shared memory");
  return Status::Ok();
}

// One that has connected. It has to prove the key soon; then it waits for its descriptors as long as the server does.
struct Client {
  UniqueFd socket;
  Deadline::Clock::time_point since;
  Proof proof{};
  size_t received = 0;  // of the proof
  size_t given = 0;     // descriptors
};

Deadline LimitOf(const Client& client, bool crowded) {
  return Deadline::After(crowded ? kCrowdedSeconds : kClientSeconds, client.since);
}

enum class Answer { kLater, kYes, kTurnedAway };

// Reads what there is of the proof.
Answer ReadProof(Client* client, const std::string& name, const ExchangeKey& key) {
  auto* bytes = reinterpret_cast<char*>(&client->proof);
  const ssize_t got =
      ::recv(client->socket.get(), bytes + client->received, sizeof(Proof) - client->received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Answer::kLater;
  if (got <= 0) return Answer::kTurnedAway;
  client->received += static_cast<size_t>(got);
  if (client->received < sizeof(Proof)) return Answer::kLater;
  const Proof& proof = client->proof;
  return ConstantTimeEqual(proof.digest, MakeDigest(key, "client", proof.nonce, name)) ? Answer::kYes
                                                                                       : Answer::kTurnedAway;
}

// The kernel limits how many of a user's descriptors are on their way: until other clients have fetched theirs.
bool IsTooMany(int err) { return err == ETOOMANYREFS || err == EAGAIN || err == EINTR; }

Answer GiveFds(Client* client, const std::vector<int>& fds, const std::string& name, const ExchangeKey& key) {
  const Digest digest = MakeDigest(key, "server", client->proof.nonce, name);
  while (client->given < fds.size()) {
    const size_t count = std::min(kFdsPerMessage, fds.size() - client->given);
    if (!SendWithFds(client->socket.get(), digest, &fds[client->given], count))
      return IsTooMany(errno) ? Answer::kLater : Answer::kTurnedAway;
    client->given += count;
  }
  return Answer::kYes;
}

// Gives what can be given now; how many clients have all of it. Those and the ones that are gone leave the list.
int GiveAll(std::vector<Client>* proved, const std::vector<int>& fds, const std::string& name, const ExchangeKey& key) {
  int served = 0;
  const auto ended = std::remove_if(proved->begin(), proved->end(), [&](Client& client) {
    const Answer answer = GiveFds(&client, fds, name, key);
    served += answer == Answer::kYes ? 1 : 0;
    return answer != Answer::kLater;
  });
  proved->erase(ended, proved->end());
  return served;
}

// Accept may succeed later.
bool IsShortage(int err) { return err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM; }

// Waits for another client (not with a `listening` of -1), for one of `waiting`, or until the first deadline. The
// result has the listening socket, the cancel descriptor and the clients, in this order.
Result<std::vector<pollfd>> Watch(int listening, int cancel_fd, const std::vector<Client>& waiting, Deadline deadline) {
  std::vector<pollfd> watched{{listening, POLLIN, 0}, {cancel_fd, POLLIN, 0}};  // poll ignores negative descriptors
  for (const Client& client : waiting) {
    watched.push_back({client.socket.get(), POLLIN, 0});
  }
  if (!waiting.empty()) deadline = deadline.Earlier(LimitOf(waiting.front(), waiting.size() >= kMaxWaiting));
  if (::poll(watched.data(), watched.size(), deadline.LeftMillis(1 << 30)) < 0 && errno != EINTR)
    return Status::FromErrno("poll", errno);
  return watched;
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
  if (::listen(socket.get(), 4096) != 0) return Status::FromErrno("listen", errno);
  return FdServer(std::move(socket), std::move(name));
}

Status FdServer::Serve(const std::vector<int>& fds, int clients, const ExchangeKey& key, int cancel_fd,
                       Deadline deadline) {
  std::vector<Client> waiting;  // oldest first; one that says nothing keeps no other waiting
  std::vector<Client> proved;   // and not served yet
  Deadline resume = Deadline::After(0);
  for (int served = 0; served < clients;) {
    const bool crowded = waiting.size() >= kMaxWaiting;
    const bool paused = !resume.Passed();
    Deadline look = paused ? deadline.Earlier(resume) : deadline;
    if (!proved.empty()) look = look.Earlier(Deadline::After(kRetrySeconds));
    const auto watched = Watch(crowded || paused ? -1 : socket_.get(), cancel_fd, waiting, look);
    if (!watched.ok()) return watched.status();
    if (watched.value()[1].revents != 0) return Status(Code::kCancelled, "cancelled");
    if (deadline.Passed())
      return Status(Code::kDeadlineExceeded, "only " + std::to_string(served) + " of " + std::to_string(clients) +
                                                 " ranks of this node fetched the shared memory");
    for (size_t i = waiting.size(); i-- > 0;) {
      Answer answer = LimitOf(waiting[i], crowded).Passed() ? Answer::kTurnedAway : Answer::kLater;
      if (watched.value()[i + 2].revents != 0) answer = ReadProof(&waiting[i], name_, key);
      if (answer == Answer::kYes) proved.push_back(std::move(waiting[i]));
      if (answer != Answer::kLater) waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    }
    served += GiveAll(&proved, fds, name_, key);
    if (watched.value()[0].revents == 0) continue;
    UniqueFd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid() && IsShortage(errno)) resume = Deadline::After(kPauseSeconds);
    if (!client.valid() && !IsShortage(errno) && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      return Status::FromErrno("accept", errno);
    if (!client.valid() || !SameUser(client.get())) continue;
    waiting.push_back(Client{std::move(client), Deadline::Clock::now()});
  }
  return Status::Ok();
}

namespace {

// The kernel's queue may be full: then it is tried again.
Status ConnectTo(int socket, const std::string& name, int cancel_fd, Deadline deadline) {
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  while (::connect(socket, reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno != EAGAIN && errno != EINTR) return Status::FromErrno("connect to the node's leader", errno);
    const Status paused = WaitReady(-1, 0, cancel_fd, deadline.Earlier(Deadline::After(kRetrySeconds)));
    if (paused.code() != Code::kDeadlineExceeded || deadline.Passed()) return paused;
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<UniqueFd>> FetchFds(const std::string& name, size_t count, const ExchangeKey& key, int cancel_fd,
                                       Deadline deadline) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Status::FromErrno("socket", errno);
  TFC_RETURN_IF_ERROR(ConnectTo(socket.get(), name, cancel_fd, deadline));
  if (!SameUser(socket.get())) return Status(Code::kProtocol, "the node's leader belongs to another user");
  Proof proof{};
  TFC_RETURN_IF_ERROR(FillRandom(proof.nonce.data(), proof.nonce.size()));
  proof.digest = MakeDigest(key, "client", proof.nonce, name);
  if (::send(socket.get(), &proof, sizeof(proof), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(proof)))
    return Status::FromErrno("send", errno);
  std::vector<UniqueFd> fds;
  while (fds.size() < count) {
    TFC_RETURN_IF_ERROR(WaitReady(socket.get(), POLLIN, cancel_fd, deadline));
    Digest digest;
    TFC_RETURN_IF_ERROR(ReceiveWithFds(socket.get(), &digest, &fds));
    if (!ConstantTimeEqual(digest, MakeDigest(key, "server", proof.nonce, name)))
      return Status(Code::kProtocol, "the node's leader has another job key");
  }
  if (fds.size() == count) return fds;
  return Status(Code::kProtocol, "the node's leader sent " + std::to_string(fds.size()) + " descriptors instead of " +
                                     std::to_string(count));
}

}  // namespace tfc
