#include "collectives/shm/fd_exchange.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/event_fd.h"
#include "testing/crowd.h"

namespace tfc {
namespace {

const ExchangeKey kKey(32, 7);
constexpr int kNoCancel = -1;

// A process of the same user that knows the name but not the key.
UniqueFd Unauthenticated(const std::string& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  return socket;
}

bool SameFile(int a, int b) {
  struct stat first{}, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

class FdExchangeTest : public ::testing::Test {
 protected:
  std::future<Status> Serve(int clients, double seconds, int cancel_fd = kNoCancel) {
    return std::async(std::launch::async, [this, clients, seconds, cancel_fd] {
      return server_.Serve({file_.get()}, clients, kKey, cancel_fd, Deadline::After(seconds));
    });
  }

  FdServer server_ = FdServer::Create().Take();
  UniqueFd file_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
};

TEST_F(FdExchangeTest, EveryClientGetsTheDescriptor) {
  auto serving = Serve(3, 10);
  for (int i = 0; i < 3; ++i) {
    auto fetched = FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(5));
    ASSERT_TRUE(fetched.ok()) << fetched.status().message();
    EXPECT_TRUE(SameFile(fetched.value().front().get(), file_.get()));
  }
  EXPECT_TRUE(serving.get().ok());
}

// More than one message of the kernel's holds, in order.
TEST_F(FdExchangeTest, ManyDescriptorsArriveInOrder) {
  constexpr size_t kCount = 300;
  std::vector<EventFd> events;
  std::vector<int> fds;
  for (size_t i = 0; i < kCount; ++i) {
    events.push_back(EventFd::Create().Take());
    fds.push_back(events.back().fd());
  }
  auto serving =
      std::async(std::launch::async, [&] { return server_.Serve(fds, 1, kKey, kNoCancel, Deadline::After(10)); });
  auto fetched = FetchFds(server_.name(), kCount, kKey, kNoCancel, Deadline::After(5));
  ASSERT_TRUE(fetched.ok()) << fetched.status().message();
  EXPECT_TRUE(serving.get().ok());
  std::vector<UniqueFd> received = fetched.Take();
  ASSERT_EQ(received.size(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const EventFd event(std::move(received[i]));
    event.Signal();
    EXPECT_TRUE(events[i].Drain()) << i;
  }
}

TEST_F(FdExchangeTest, AnotherNumberOfDescriptorsIsRefused) {
  auto serving = std::async(std::launch::async, [&] {
    return server_.Serve({file_.get(), file_.get()}, 1, kKey, kNoCancel, Deadline::After(10));
  });
  EXPECT_EQ(FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(5)).status().code(), Code::kProtocol);
  EXPECT_TRUE(serving.get().ok());
}

TEST_F(FdExchangeTest, SilentUnauthenticatedPeersKeepNoRankWaiting) {
  const UniqueFd silent = Unauthenticated(server_.name()), half = Unauthenticated(server_.name());
  ASSERT_EQ(::send(half.get(), "half a proof", 12, MSG_NOSIGNAL), 12);
  Unauthenticated(server_.name());  // and one that is gone again
  const auto begin = std::chrono::steady_clock::now();
  auto serving = Serve(1, 30);
  const auto fetched = FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(20));
  EXPECT_TRUE(fetched.ok()) << fetched.status().message();
  EXPECT_TRUE(serving.get().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

TEST_F(FdExchangeTest, ManySilentProcessesKeepNoClientWaiting) {
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(Unauthenticated(server_.name()));
  auto serving = Serve(1, 60);
  const auto fetched = FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(60));
  EXPECT_TRUE(fetched.ok()) << fetched.status().message();
  EXPECT_TRUE(serving.get().ok());
}

// The kernel's queue takes 4096 at most; a client beyond it waits as long as it may, and not longer.
TEST_F(FdExchangeTest, AFullQueueIsWaitedForUntilTheDeadline) {
  if (!AllowDescriptors(5000)) GTEST_SKIP() << "too few descriptors";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, server_.name().data(), server_.name().size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + server_.name().size());
  std::vector<UniqueFd> queue;
  bool full = false;
  while (!full && queue.size() < 4500) {
    queue.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    full = ::connect(queue.back().get(), reinterpret_cast<sockaddr*>(&address), size) != 0;
  }
  if (!full) GTEST_SKIP() << "this kernel's queue is longer";
  EXPECT_EQ(FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(0.1)).status().code(),
            Code::kDeadlineExceeded);
  const EventFd cancel = EventFd::Create().Take();
  cancel.Signal();
  EXPECT_EQ(FetchFds(server_.name(), 1, kKey, cancel.fd(), Deadline::After(60)).status().code(), Code::kCancelled);
  queue.clear();
  auto serving = Serve(1, 60);
  EXPECT_TRUE(FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(60)).ok());
  EXPECT_TRUE(serving.get().ok());
}

// Of the calling thread.
bool DropPrivileges() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return ::syscall(SYS_capset, &header, none) == 0;
}

// Keeps `count` copies of a descriptor on their way.
class UnderWay {
 public:
  UnderWay(int fd, size_t count) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    char byte = 0;
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    const std::vector<int> copies(count, fd);
    std::memcpy(CMSG_DATA(header), copies.data(), count * sizeof(int));
    EXPECT_EQ(::sendmsg(ends_[0], &message, MSG_NOSIGNAL), 1);
  }
  ~UnderWay() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  int ends_[2] = {-1, -1};
};

// The kernel lets a user have as many on their way as files open. The limit for clients that prove nothing is not one
// for those that wait for their descriptors.
TEST_F(FdExchangeTest, TooManyDescriptorsUnderWayAreWaitedFor) {
  constexpr size_t kMany = 250;
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few = {kMany - 50, usual.rlim_max};
  auto under_way = std::make_unique<UnderWay>(file_.get(), kMany);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  auto serving = std::async(std::launch::async, [this] {
    EXPECT_TRUE(DropPrivileges());
    return server_.Serve({file_.get()}, 1, kKey, kNoCancel, Deadline::After(60));
  });
  auto fetching = std::async(std::launch::async,
                             [this] { return FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(60)); });
  EXPECT_EQ(fetching.wait_for(std::chrono::milliseconds(5500)), std::future_status::timeout);
  under_way.reset();
  const auto fetched = fetching.get();
  EXPECT_TRUE(fetched.ok()) << fetched.status().message();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  if (!fetched.ok()) EXPECT_TRUE(FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(60)).ok());
  EXPECT_TRUE(serving.get().ok());
}

TEST_F(FdExchangeTest, AnotherKeyGetsNothingAndDoesNotCount) {
  auto serving = Serve(1, 10);
  EXPECT_FALSE(FetchFds(server_.name(), 1, ExchangeKey(32, 8), kNoCancel, Deadline::After(5)).ok());
  EXPECT_TRUE(FetchFds(server_.name(), 1, kKey, kNoCancel, Deadline::After(5)).ok());
  EXPECT_TRUE(serving.get().ok());
}

TEST_F(FdExchangeTest, ServingEndsByItsDeadlineOrWhenCancelled) {
  EXPECT_EQ(Serve(1, 0.1).get().code(), Code::kDeadlineExceeded);
  const EventFd cancel = EventFd::Create().Take();
  auto serving = Serve(1, 30, cancel.fd());
  cancel.Signal();
  EXPECT_EQ(serving.get().code(), Code::kCancelled);
}

}  // namespace
}  // namespace tfc
