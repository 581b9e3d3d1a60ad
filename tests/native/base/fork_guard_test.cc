#include "base/fork_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace tfc {
namespace {

// Whether a fork made now has the descriptor open.
bool ForkHas(int fd) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::fcntl(fd, F_GETFD) >= 0 ? 1 : 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WEXITSTATUS(status) == 1;
}

UniqueFd Open() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TEST(ForkGuardTest, AForkHasOnlyWhatIsNotGuarded) {
  const UniqueFd guarded = Open(), other = Open();
  CloseInForks(guarded.get());
  EXPECT_FALSE(ForkHas(guarded.get()));
  EXPECT_TRUE(ForkHas(other.get()));
  EXPECT_GE(::fcntl(guarded.get(), F_GETFD), 0) << "the parent keeps it";
  EXPECT_FALSE(ForkHas(guarded.get())) << "the second fork as well";
}

TEST(ForkGuardTest, AMovedDescriptorStaysGuarded) {
  UniqueFd first = Open();
  CloseInForks(first.get());
  const UniqueFd second = std::move(first);
  EXPECT_FALSE(ForkHas(second.get()));
}

TEST(ForkGuardTest, AClosedDescriptorsNumberIsFreeAgain) {
  UniqueFd guarded = Open();
  const int number = guarded.get();
  CloseInForks(number);
  guarded.Reset();
  const UniqueFd reused = Open();
  ASSERT_EQ(reused.get(), number);
  EXPECT_TRUE(ForkHas(number));
}

TEST(ForkGuardTest, NumbersOutOfRangeAreIgnored) {
  CloseInForks(-1);
  CloseInForks(1 << 20);
  KeepInForks(-1);
  KeepInForks(1 << 20);
}

TEST(ForkGuardTest, TheHighestBitOfAWordWorks) {
  UniqueFd guarded(::fcntl(Open().get(), F_DUPFD_CLOEXEC, 127));
  ASSERT_EQ(guarded.get(), 127);
  CloseInForks(127);
  EXPECT_FALSE(ForkHas(127));
}

}  // namespace
}  // namespace tfc
