#include "collectives/transport/tcp/socket_options.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace tfc {
namespace {

int ValueOf(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &size), 0);
  return value;
}

TEST(ConfigureConnectionTest, AnIdleVanishedHostIsNoticedWithinFifteenSecondsAndASlowOneIsNot) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(ConfigureConnection(fd.get()).ok());
  EXPECT_EQ(ValueOf(fd.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(ValueOf(fd.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  const int idle = ValueOf(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE);
  const int interval = ValueOf(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL);
  const int probes = ValueOf(fd.get(), IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_LE(idle + interval * probes, 15);
  EXPECT_EQ(ValueOf(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0) << "it counts a full window as a lost peer";
}

// Or a data loader's worker would keep the connection of a killed rank alive.
TEST(ConfigureConnectionTest, AForkDoesNotInheritIt) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(ConfigureConnection(fd.get()).ok());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::fcntl(fd.get(), F_GETFD) >= 0 ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ConfigureConnectionTest, SaysWhichOptionFailed) {
  const Status status = ConfigureConnection(-1);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("TCP_NODELAY"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tfc
