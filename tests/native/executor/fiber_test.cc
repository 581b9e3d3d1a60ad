#include "executor/fiber.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tfc {
namespace {

TEST(FiberTest, AlternatesWithItsCaller) {
  std::string log;
  std::unique_ptr<Fiber> fiber;
  auto made = Fiber::Create([&] {
    log += "a";
    fiber->Yield();
    log += "b";
    fiber->Yield();
    log += "c";
  });
  ASSERT_TRUE(made.ok());
  fiber = made.Take();
  EXPECT_EQ(log, "");
  for (const char* expected : {"a", "ab", "abc"}) {
    EXPECT_FALSE(fiber->finished());
    fiber->Resume();
    EXPECT_EQ(log, expected);
  }
  EXPECT_TRUE(fiber->finished());
}

TEST(FiberTest, ManyFibersKeepTheirLocals) {
  std::vector<std::unique_ptr<Fiber>> fibers(20);
  std::vector<int> sums(fibers.size(), 0);
  for (size_t i = 0; i < fibers.size(); ++i) {
    fibers[i] = Fiber::Create([&fibers, &sums, i] {
                  int sum = 0;
                  for (int step = 0; step < 100; ++step) {
                    sum += static_cast<int>(i);
                    fibers[i]->Yield();
                  }
                  sums[i] = sum;
                }).Take();
  }
  bool running = true;
  while (running) {
    running = false;
    for (auto& fiber : fibers) {
      if (fiber->finished()) continue;
      fiber->Resume();
      running = true;
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], static_cast<int>(100 * i));
}

}  // namespace
}  // namespace tfc
