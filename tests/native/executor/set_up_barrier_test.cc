#include "executor/set_up_barrier.h"

#include <gtest/gtest.h>

#include <thread>

namespace tfc {
namespace {

TEST(SetUpBarrierTest, TheFirstObjectionIsThatOfAllRanks) {
  FirstFailure failure;
  SetUpBarrier barrier(3, &failure);
  EXPECT_FALSE(barrier.Arrive(2, Status::Ok()));
  EXPECT_FALSE(barrier.Arrive(0, Status(Code::kIo, "rank 0: no memory")));
  EXPECT_EQ(barrier.missing(), std::vector<int>{1});
  const auto gathered = barrier.Arrive(1, Status(Code::kIo, "rank 1: no memory"));
  ASSERT_TRUE(gathered);
  EXPECT_EQ(gathered->message(), "rank 0: no memory");
  // The next one begins anew.
  EXPECT_EQ(barrier.missing(), (std::vector<int>{0, 1, 2}));
  for (const int rank : {0, 1}) EXPECT_FALSE(barrier.Arrive(rank, Status::Ok()));
  EXPECT_TRUE(barrier.Arrive(2, Status::Ok())->ok());
}

TEST(SetUpBarrierTest, OpensOnceForEachTime) {
  FirstFailure failure;
  SetUpBarrier barrier(2, &failure);
  barrier.Close();
  barrier.Open(Go{true, Status::Ok()});
  const auto go = barrier.Wait(Deadline::After(60));
  ASSERT_TRUE(go);
  EXPECT_TRUE(go->probe);
  barrier.Close();
  EXPECT_FALSE(barrier.Wait(Deadline::After(0)));
}

TEST(SetUpBarrierTest, AFailureEndsTheWait) {
  FirstFailure failure;
  SetUpBarrier barrier(2, &failure);
  barrier.Close();
  const Deadline deadline = Deadline::After(60);
  std::thread failing([&] { failure.Set(Status(Code::kPeerLost, "gone", 1)); });
  EXPECT_FALSE(barrier.Wait(deadline));
  EXPECT_FALSE(deadline.Passed());
  failing.join();
}

}  // namespace
}  // namespace tfc
