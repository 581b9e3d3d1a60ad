#include "control/control_connections.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_count.h"
#include "base/event_fd.h"
#include "base/mutex.h"
#include "base/rank_texts.h"
#include "base/thread.h"
#include "collectives/transport/tcp/acceptor.h"
#include "collectives/transport/tcp/ack_watch.h"
#include "collectives/transport/tcp/dialer.h"

namespace tfc {
namespace {

// Views of bucket plans with thousands of tensors are the longest messages.
constexpr uint32_t kMaxMessage = 16u << 20;
constexpr size_t kTypeAt = sizeof(uint32_t);  // behind the size of the payload
constexpr size_t kHeader = kTypeAt + sizeof(uint8_t);
constexpr int kAcceptorKey = -1;
constexpr int kWakeKey = -2;

// With its header. A message to many ranks exists once.
using SharedFrame = std::shared_ptr<const std::string>;

// One end of a control connection. `incoming` and `acks` are the monitor's; the rest stands under the mutex of the
// links.
struct Link {
  UniqueFd fd;
  std::string incoming;
  std::deque<SharedFrame> outgoing;  // what the kernel has not taken yet
  size_t sent_of_front = 0;
  bool write_closed = false;
  bool unanswered = false;  // the peer's host may not have acknowledged what was sent
  AckWatch acks;
};

SharedFrame Frame(uint8_t type, const std::string& payload) {
  std::string frame(kHeader, '\0');
  const auto size = static_cast<uint32_t>(payload.size());
  std::memcpy(frame.data(), &size, sizeof(size));
  frame[sizeof(size)] = static_cast<char>(type);
  return std::make_shared<const std::string>(frame + payload);
}

}  // namespace

struct ControlConnections::Impl {
  ControlOptions options;
  ControlHandler* handler = nullptr;
  std::unique_ptr<Acceptor> acceptor;
  UniqueFd epoll;
  EventFd wake;
  EventFd cancel;  // ends a connect to rank 0 that is under way
  std::thread thread;
  std::atomic<std::thread::id> monitor{};  // while it runs

  Mutex all_mutex;  // all ranks get what is sent to all in the same order
  Mutex links_mutex;
  std::map<int, Link> links TFC_GUARDED_BY(links_mutex);  // by rank; only the monitor adds and removes them
  std::atomic<bool> looking{false};  // something was sent: the monitor looks whether the peers' hosts are still there

  ThreadRole monitor_thread;
  std::optional<Deadline> next_look TFC_GUARDED_BY(monitor_thread);
  bool ending TFC_GUARDED_BY(monitor_thread) = false;  // links end when they have sent everything

  Mutex mutex;
  std::deque<std::function<void()>> tasks TFC_GUARDED_BY(mutex);
  std::set<int> connected TFC_GUARDED_BY(mutex);
  Status lost TFC_GUARDED_BY(mutex);  // what ends the start: the first connection that ended, or CANCELLED
  bool stopping TFC_GUARDED_BY(mutex) = false;
  Deadline stop_deadline TFC_GUARDED_BY(mutex) = Deadline::After(0);
  EventCount events;  // where Start waits for `connected` and `lost`

  bool is_root() const { return options.self.rank == 0; }

  void PostTask(std::function<void()> task) {
    {
      const MutexLock lock(mutex);
      tasks.push_back(std::move(task));
    }
    if (monitor.load() != std::this_thread::get_id()) wake.Signal();  // the monitor looks before it sleeps
  }

  Status Watch(int fd, int key, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = static_cast<uint64_t>(static_cast<int64_t>(key));
    if (::epoll_ctl(epoll.get(), operation, fd, &event) != 0) return Status::FromErrno("epoll_ctl", errno);
    return Status::Ok();
  }

  // nullptr if there is none. It stays until the monitor removes it.
  Link* Find(int rank) TFC_REQUIRES(monitor_thread) {
    const MutexLock lock(links_mutex);
    const auto found = links.find(rank);
    return found == links.end() ? nullptr : &found->second;
  }

  void AddLink(int rank, UniqueFd fd) TFC_REQUIRES(monitor_thread) {
    if (Find(rank) != nullptr) {
      options.log.Warning("a second control connection of rank " + std::to_string(rank) + " was refused");
      return;
    }
    const Status watched = Watch(fd.get(), rank, EPOLLIN, EPOLL_CTL_ADD);
    if (!watched.ok()) {
      handler->OnClosed(rank, watched);
      return;
    }
    {
      const MutexLock lock(links_mutex);
      links[rank].fd = std::move(fd);
      if (ending) EndWriting(&links[rank]);
    }
    const MutexLock lock(mutex);
    connected.insert(rank);
    events.Notify();
  }

  void CloseLink(int rank, const Status& why) TFC_REQUIRES(monitor_thread) {
    const Link* const link = Find(rank);
    if (link == nullptr) return;
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, link->fd.get(), nullptr);
    {
      const MutexLock lock(links_mutex);
      links.erase(rank);
    }
    handler->OnClosed(rank, why);
    // After the tasks that its last messages have caused: they may say why.
    PostTask([this, rank, why] {
      const MutexLock lock(mutex);
      if (lost.ok()) lost = Status(Code::kPeerLost, "rank " + std::to_string(rank) + ": " + why.message(), rank);
      events.Notify();
    });
  }

  // On the caller's thread as far as the kernel takes it: waking the monitor costs more than most messages. The rest,
  // and errors, are the monitor's.
  void Send(int to, const SharedFrame& frame) {
    if (to == options.self.rank) {
      PostTask([this, to, frame] {
        handler->OnMessage(to, static_cast<uint8_t>((*frame)[kTypeAt]), frame->substr(kHeader));
      });
      return;
    }
    Status status;
    {
      const MutexLock lock(links_mutex);
      const auto found = links.find(to);
      if (found == links.end() || found->second.write_closed) return;  // gone: OnClosed has said so
      Link& link = found->second;
      link.outgoing.push_back(frame);
      if (link.outgoing.size() > 1) return;  // the monitor is at what is before it
      status = Write(&link, to);
      if (status.ok() && link.outgoing.empty()) return KeepLooking();
    }
    PostTask([this, to, status] {
      monitor_thread.AssertHeld();
      status.ok() ? Flush(to) : LoseLink(to, status);
    });
  }

  // The first message in a while wakes the monitor, which then looks until all is acknowledged. With or without the
  // mutex of the links.
  void KeepLooking() {
    if (!looking.load() && !looking.exchange(true)) PostTask([] {});
  }

  // Looks at the peers' hosts when that is due. Says when to be called again, if ever.
  std::optional<Deadline> LookAtHosts() TFC_REQUIRES(monitor_thread) {
    if (next_look && next_look->Passed()) {
      next_look.reset();
      looking.store(false);  // before looking: what is sent later wakes the monitor again
      for (const int rank : SilentPeers()) LoseLink(rank, Status(Code::kPeerLost, AckWatch::Explain(), rank));
    }
    if (!looking.load()) return std::nullopt;
    if (!next_look) next_look = Deadline::After(AckWatch::kSeconds);
    return next_look;
  }

  std::vector<int> SilentPeers() {
    std::vector<int> silent;
    const MutexLock lock(links_mutex);
    for (auto& [rank, link] : links) {
      if (!link.unanswered) continue;
      const AckWatch::State state = link.acks.Look(link.fd.get());
      if (state == AckWatch::State::kQuiet) link.unanswered = false;
      if (state == AckWatch::State::kWaiting) looking.store(true);
      if (state == AckWatch::State::kSilent) silent.push_back(rank);
    }
    return silent;
  }

  // What has arrived already (the reason for the loss, perhaps) comes first.
  void LoseLink(int rank, const Status& why) TFC_REQUIRES(monitor_thread) {
    ReadLink(rank);
    CloseLink(rank, why);
  }

  // Sends what the kernel takes now.
  Status Write(Link* link, int rank) TFC_REQUIRES(links_mutex) {
    while (!link->outgoing.empty()) {
      const std::string& front = *link->outgoing.front();
      const ssize_t sent = ::send(link->fd.get(), front.data() + link->sent_of_front,
                                  front.size() - link->sent_of_front, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (sent < 0) return Status::FromErrno("send", errno, rank);
      link->unanswered = true;
      link->sent_of_front += static_cast<size_t>(sent);
      if (link->sent_of_front == front.size()) {
        link->outgoing.pop_front();
        link->sent_of_front = 0;
      }
    }
    return Status::Ok();
  }

  // Sends what is queued, and asks epoll to report when the kernel takes more.
  void Flush(int rank) TFC_REQUIRES(monitor_thread) {
    Link* const link = Find(rank);
    if (link == nullptr) return;
    Status status;
    uint32_t wanted = EPOLLIN;
    {
      const MutexLock lock(links_mutex);
      status = Write(link, rank);
      if (!link->outgoing.empty()) wanted |= EPOLLOUT;
      if (status.ok() && ending) EndWriting(link);
    }
    if (!status.ok()) return LoseLink(rank, status);
    KeepLooking();
    const Status watched = Watch(link->fd.get(), rank, wanted, EPOLL_CTL_MOD);
    if (!watched.ok()) CloseLink(rank, watched);
  }

  void ReadLink(int rank) TFC_REQUIRES(monitor_thread) {
    std::array<char, 65536> buffer;
    while (Link* const link = Find(rank)) {
      const ssize_t got = ::recv(link->fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got < 0) return CloseLink(rank, Status::FromErrno("recv", errno, rank));
      if (got == 0) return CloseLink(rank, Status(Code::kPeerLost, "closed its control connection", rank));
      link->incoming.append(buffer.data(), static_cast<size_t>(got));
      const Status delivered = Deliver(rank, std::exchange(link->incoming, ""));
      if (!delivered.ok()) return CloseLink(rank, delivered);
    }
  }

  // Hands on every complete message, and keeps the rest.
  Status Deliver(int rank, const std::string& incoming) TFC_REQUIRES(monitor_thread) {
    size_t at = 0;
    while (incoming.size() - at >= kHeader) {
      uint32_t size = 0;
      std::memcpy(&size, incoming.data() + at, sizeof(size));
      if (size > kMaxMessage)
        return Status(Code::kProtocol, "sent a control message of " + std::to_string(size) + " bytes", rank);
      if (incoming.size() - at - kHeader < size) break;
      const auto type = static_cast<uint8_t>(incoming[at + sizeof(size)]);
      handler->OnMessage(rank, type, incoming.substr(at + kHeader, size));
      at += kHeader + size;
    }
    // The handler may have closed the link, but never reads it: ours is the only reader.
    if (Link* const link = Find(rank)) link->incoming = incoming.substr(at);
    return Status::Ok();
  }

  void AcceptPeers() TFC_REQUIRES(monitor_thread) {
    auto accepted = acceptor->Advance();
    if (!accepted.ok()) {
      options.log.Error("no further peers can connect: " + accepted.status().message());
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, acceptor->fd(), nullptr);
      return;
    }
    for (Accepted& peer : accepted.value()) {
      const int rank = peer.hello.sender;
      if (peer.hello.purpose == Purpose::kData) {
        handler->OnDataConnection(rank, std::move(peer.fd));
      } else if (is_root()) {
        AddLink(rank, std::move(peer.fd));
      } else {
        options.log.Warning("rank " + std::to_string(rank) +
                            " made a control connection to this rank, which is not 0: refused");
      }
    }
  }

  void RunTasks() {
    std::deque<std::function<void()>> todo;
    {
      const MutexLock lock(mutex);
      todo.swap(tasks);
    }
    for (auto& task : todo) task();
  }

  int SleepMillis() TFC_REQUIRES(monitor_thread) {
    const auto tick = handler->OnTick(Deadline::Clock::now());
    auto next = LookAtHosts();
    if (tick) next = next ? next->Earlier(Deadline::At(*tick)) : Deadline::At(*tick);
    const MutexLock lock(mutex);
    if (!tasks.empty()) return 0;
    if (stopping) next = next ? next->Earlier(stop_deadline) : stop_deadline;
    return next ? next->LeftMillis(1 << 30) : -1;
  }

  // True once nothing remains to be sent or heard.
  bool Finished() TFC_REQUIRES(monitor_thread) {
    {
      const MutexLock lock(mutex);
      if (!stopping || !tasks.empty()) return false;
      if (stop_deadline.Passed()) return true;
    }
    const MutexLock lock(links_mutex);
    if (!std::exchange(ending, true))
      for (auto& [rank, link] : links) EndWriting(&link);
    return links.empty();
  }

  // Says end-of-stream once everything has been sent.
  void EndWriting(Link* link) TFC_REQUIRES(links_mutex) {
    if (!link->outgoing.empty() || link->write_closed) return;
    ::shutdown(link->fd.get(), SHUT_WR);
    link->write_closed = true;
  }

  void Loop() {
    monitor_thread.AssertHeld();
    monitor = std::this_thread::get_id();
    std::array<epoll_event, 64> ready;
    while (!Finished()) {
      const int count = ::epoll_wait(epoll.get(), ready.data(), static_cast<int>(ready.size()), SleepMillis());
      for (int i = 0; i < count; ++i) HandleEvent(ready[static_cast<size_t>(i)]);
      RunTasks();
    }
    {
      const MutexLock lock(links_mutex);
      links.clear();
    }
    monitor = std::thread::id();
  }

  void HandleEvent(const epoll_event& event) TFC_REQUIRES(monitor_thread) {
    const int key = static_cast<int>(static_cast<int64_t>(event.data.u64));
    if (key == kWakeKey) {
      wake.Drain();
    } else if (key == kAcceptorKey) {
      AcceptPeers();
    } else {
      if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) ReadLink(key);
      if ((event.events & EPOLLOUT) != 0) Flush(key);
    }
  }

  size_t wanted() const { return is_root() ? static_cast<size_t>(options.self.size) - 1 : 1; }
  bool MayStart() {
    const MutexLock lock(mutex);
    return connected.size() >= wanted() || !lost.ok();
  }

  std::vector<int> Missing() TFC_REQUIRES(mutex) {
    std::vector<int> missing;
    for (int rank = 1; rank < options.self.size; ++rank)
      if (connected.count(rank) == 0) missing.push_back(rank);
    return missing;
  }

  // How the start ends, by now.
  Status Started() {
    const MutexLock lock(mutex);
    if (!lost.ok() || connected.size() >= wanted()) return lost;
    if (!is_root()) return Status(Code::kDeadlineExceeded, "the connection to rank 0 was not ready in time", 0);
    const std::vector<int> missing = Missing();
    return Status(Code::kDeadlineExceeded, RankList(missing) + " did not connect to rank 0", missing.front());
  }

  Status ConnectToRoot(Deadline deadline) {
    Hello hello;
    hello.purpose = Purpose::kControl;
    hello.generation = options.self.generation;
    hello.sender = options.self.rank;
    hello.receiver = 0;
    auto fd = Connect(options.root, hello, options.key, deadline, cancel.fd());
    if (!fd.ok()) return fd.status();
    auto shared = std::make_shared<UniqueFd>(fd.Take());
    PostTask([this, shared] {
      monitor_thread.AssertHeld();
      AddLink(0, std::move(*shared));
    });
    return Status::Ok();
  }
};

ControlConnections::ControlConnections(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlConnections::~ControlConnections() { Stop(Deadline::After(0)); }

Result<std::unique_ptr<ControlConnections>> ControlConnections::Create(const ControlOptions& options,
                                                                       TcpListener listener, ControlHandler* handler) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->handler = handler;
  AcceptorOptions acceptor_options;
  acceptor_options.key = options.key;
  acceptor_options.self = options.self;
  acceptor_options.log = options.log;
  auto acceptor = Acceptor::Create(std::move(listener), acceptor_options);
  if (!acceptor.ok()) return acceptor.status();
  impl->acceptor = acceptor.Take();
  auto wake = EventFd::Create();
  if (!wake.ok()) return wake.status();
  impl->wake = wake.Take();
  auto cancel = EventFd::Create();
  if (!cancel.ok()) return cancel.status();
  impl->cancel = cancel.Take();
  impl->epoll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!impl->epoll.valid()) return Status::FromErrno("epoll_create1", errno);
  TFC_RETURN_IF_ERROR(impl->Watch(impl->acceptor->fd(), kAcceptorKey, EPOLLIN, EPOLL_CTL_ADD));
  TFC_RETURN_IF_ERROR(impl->Watch(impl->wake.fd(), kWakeKey, EPOLLIN, EPOLL_CTL_ADD));
  return std::unique_ptr<ControlConnections>(new ControlConnections(std::move(impl)));
}

Status ControlConnections::Start(Deadline deadline) {
  auto thread = StartThread("tfc-monitor", [this] { impl_->Loop(); });
  if (!thread.ok()) return thread.status();
  impl_->thread = thread.Take();
  if (!impl_->is_root()) TFC_RETURN_IF_ERROR(impl_->ConnectToRoot(deadline));
  impl_->events.WaitUntil(deadline, [this] { return impl_->MayStart(); });
  return impl_->Started();
}

void ControlConnections::CancelStart() {
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->lost.ok()) impl_->lost = Status(Code::kCancelled, "connecting was cancelled");
  }
  impl_->cancel.Signal();
  impl_->events.Notify();
}

std::vector<int> ControlConnections::Missing() const {
  const MutexLock lock(impl_->mutex);
  return impl_->Missing();
}

bool ControlConnections::IsMonitor() const { return impl_->monitor.load() == std::this_thread::get_id(); }

void ControlConnections::Send(int to, uint8_t type, const std::string& payload) {
  impl_->Send(to, Frame(type, payload));
}

void ControlConnections::Send(const std::vector<int>& to, uint8_t type, const std::string& payload) {
  const SharedFrame frame = Frame(type, payload);
  for (const int rank : to) impl_->Send(rank, frame);
}

void ControlConnections::SendToAll(uint8_t type, const std::string& payload) {
  const SharedFrame frame = Frame(type, payload);
  const MutexLock lock(impl_->all_mutex);
  for (int rank = 0; rank < impl_->options.self.size; ++rank) impl_->Send(rank, frame);
}

void ControlConnections::Post(std::function<void()> task) { impl_->PostTask(std::move(task)); }

void ControlConnections::Stop(Deadline deadline) {
  if (!impl_->thread.joinable()) return;
  {
    const MutexLock lock(impl_->mutex);
    impl_->stopping = true;
    impl_->stop_deadline = deadline;
  }
  impl_->cancel.Signal();
  impl_->wake.Signal();
  impl_->thread.join();
}

}  // namespace tfc
