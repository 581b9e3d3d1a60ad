#include "base/callers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <thread>

namespace tfc {
namespace {

// In one test: what has been noted stays.
TEST(CallersTest, AThreadOfTheProgramIsToldFromTheMainThread) {
  NoteCaller();
  EXPECT_TRUE(OneProgramThreadCalls());
  std::thread(NoteCaller).join();
  EXPECT_FALSE(OneProgramThreadCalls());
  NoteCaller();
  EXPECT_FALSE(OneProgramThreadCalls());
}

TEST(CallersDeathTest, CallsInAnyOrderCountAsThoseOfMoreThreads) {
  const auto note = [] {
    NoteUnorderedCalls();
    std::exit(OneProgramThreadCalls() ? 1 : 0);
  };
  EXPECT_EXIT(note(), testing::ExitedWithCode(0), "");  // in a process of its own: what has been noted stays
}

TEST(CallersTest, ProcessorTimeGrowsWithWork) {
  const double before = ProcessorTime();
  volatile uint64_t sum = 0;
  while (ProcessorTime() == before) sum = sum + 1;
  EXPECT_GT(ProcessorTime(), before);
}

}  // namespace
}  // namespace tfc
