#include "collectives/transport/tcp/refusal_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "testing/log_recorder.h"

namespace tfc {
namespace {

TEST(RefusalLog, ManyUnauthenticatedPeersMakeFewLines) {
  LogRecorder recorder;
  RefusalLog refusals(recorder.log());
  const auto now = RefusalLog::Clock::now();
  for (int i = 0; i < 1000; ++i) refusals.Note("refused", now);
  EXPECT_EQ(recorder.lines().size(), 20u);
  refusals.Note("another", now + std::chrono::milliseconds(1500));
  EXPECT_EQ(recorder.lines().size(), 21u);
  EXPECT_TRUE(recorder.Contains("another (980 more before)"));
}

TEST(RefusalLog, FewUnauthenticatedPeersAreAllNamed) {
  LogRecorder recorder;
  RefusalLog refusals(recorder.log());
  for (int i = 0; i < 10; ++i) refusals.Note("client " + std::to_string(i));
  EXPECT_EQ(recorder.lines().size(), 10u);
  EXPECT_TRUE(recorder.Contains("client 9"));
  EXPECT_FALSE(recorder.Contains("more before"));
}

}  // namespace
}  // namespace tfc
