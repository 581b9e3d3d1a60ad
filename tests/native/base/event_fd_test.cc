#include "base/event_fd.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace tfc {
namespace {

bool IsReadable(int fd) {
  pollfd ready = {fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

TEST(EventFdTest, StaysReadableFromSignalToDrain) {
  const EventFd event = EventFd::Create().Take();
  EXPECT_FALSE(IsReadable(event.fd()));
  EXPECT_FALSE(event.Drain());
  event.Signal();
  event.Signal();
  EXPECT_TRUE(IsReadable(event.fd()));
  EXPECT_TRUE(event.Drain());
  EXPECT_FALSE(IsReadable(event.fd()));
}

TEST(EventFdTest, WithoutADescriptorNothingHappens) {
  const EventFd event;
  event.Signal();
  EXPECT_FALSE(event.Drain());
}

}  // namespace
}  // namespace tfc
