#include "base/cpu_set.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace tfc {
namespace {

CpuSet SetOf(std::initializer_list<int> cpus) {
  CpuSet set;
  for (const int cpu : cpus) set.Add(cpu);
  return set;
}

TEST(CpuSet, TextIsShortAndComesBack) {
  EXPECT_EQ(SetOf({}).ToString(), "0");
  EXPECT_EQ(SetOf({0}).ToString(), "1");
  EXPECT_EQ(SetOf({1, 4, 11}).ToString(), "812");
  EXPECT_EQ(SetOf({1023}).ToString().size(), 256u);
  for (const CpuSet& set : {SetOf({}), SetOf({0, 1}), SetOf({7, 63, 64, 511, 1023})}) {
    auto parsed = CpuSet::Parse(set.ToString());
    ASSERT_TRUE(parsed.ok());
    EXPECT_TRUE(parsed.Take() == set);
  }
}

TEST(CpuSet, WhatIsNoSetIsRefused) {
  for (const std::string& text : {std::string(), std::string("g"), std::string("-1"), std::string(257, '0')})
    EXPECT_EQ(CpuSet::Parse(text).status().code(), Code::kInvalidArgument) << text;
}

TEST(CpuSet, UnionCountsEachProcessorOnce) {
  CpuSet all = SetOf({0, 1});
  all.Add(SetOf({1, 2}));
  EXPECT_EQ(all.count(), 3);
}

TEST(CpuSet, UsableFollowsTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(CpuSet::Usable().count(), CPU_COUNT(&before));
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_TRUE(CpuSet::Usable() == SetOf({cpu}));
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace tfc
