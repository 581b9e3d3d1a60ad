// tfc_allreduce_steps: what the algorithms really do, as other ranks see it.
#include "simulator/steps.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <tuple>
#include <vector>

namespace {

std::vector<tfc_step> StepsOf(int32_t size, int32_t rank, int64_t count) {
  std::vector<tfc_step> found;
  const auto keep = [](void* user, const tfc_step* step) {
    static_cast<std::vector<tfc_step>*>(user)->push_back(*step);
  };
  EXPECT_EQ(TFC_OK, tfc_allreduce_steps(size, rank, count, TFC_FLOAT32, keep, &found, nullptr));
  return found;
}

// Sender, receiver, message number -> bytes.
using Messages = std::map<std::tuple<int, int, uint32_t>, uint64_t>;

class StepsTest : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(StepsTest, EverySendHasItsReceiveAndEveryRequestIsWaitedFor) {
  const auto [size, count] = GetParam();
  Messages sent, received;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<int> waits(1, 0);
    for (const tfc_step& step : StepsOf(size, rank, count)) {
      if (step.kind == TFC_STEP_WAIT) {
        ASSERT_LT(step.request, waits.size()) << "waits for what is not posted yet";
        ++waits[step.request];
        continue;
      }
      ASSERT_EQ(waits.size(), step.request);
      waits.push_back(0);
      const bool send = step.kind == TFC_STEP_SEND;
      Messages& messages = send ? sent : received;
      const auto key =
          send ? std::make_tuple(rank, step.peer, step.message) : std::make_tuple(step.peer, rank, step.message);
      ASSERT_TRUE(messages.emplace(key, step.bytes).second) << "the same message twice";
    }
    EXPECT_EQ(std::vector<int>(waits.begin() + 1, waits.end()), std::vector<int>(waits.size() - 1, 1));
  }
  EXPECT_EQ(sent, received);
}

INSTANTIATE_TEST_SUITE_P(Worlds, StepsTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8, 13),
                                          testing::Values(0, 1, 1000, 70000, 1 << 20)));

TEST(Steps, LargeBuffersMoveWhatARingMoves) {
  uint64_t sent = 0;
  for (const tfc_step& step : StepsOf(4, 1, 4 << 20)) sent += step.kind == TFC_STEP_SEND ? step.bytes : 0;
  EXPECT_EQ(sent, 2u * 3 * (16 << 20) / 4);
}

TEST(Steps, WrongArgumentsAreRefused) {
  tfc_error error{};
  error.struct_size = sizeof(error);
  const tfc_step_fn ignore = [](void*, const tfc_step*) {};
  EXPECT_EQ(TFC_INVALID_ARGUMENT, tfc_allreduce_steps(4, 4, 1, TFC_FLOAT32, ignore, nullptr, &error));
  EXPECT_NE(std::string(error.message).find("rank 4 of 4"), std::string::npos) << error.message;
  EXPECT_EQ(TFC_INVALID_ARGUMENT, tfc_allreduce_steps(0, 0, 1, TFC_FLOAT32, ignore, nullptr, &error));
  EXPECT_EQ(TFC_INVALID_ARGUMENT, tfc_allreduce_steps(2, 0, -1, TFC_FLOAT32, ignore, nullptr, &error));
  EXPECT_EQ(TFC_INVALID_ARGUMENT, tfc_allreduce_steps(2, 0, 1, 99, ignore, nullptr, &error));
  EXPECT_EQ(TFC_INVALID_ARGUMENT, tfc_allreduce_steps(2, 0, 1, TFC_FLOAT32, nullptr, nullptr, &error));
}

}  // namespace
