#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

namespace tfc {
namespace {

TEST(StatusTest, NamesEveryCodeAndNothingElse) {
  EXPECT_STREQ(CodeName(0), "OK");
  EXPECT_STREQ(CodeName(5), "PEER_LOST");
  EXPECT_STREQ(CodeName(13), "INTERNAL");
  for (int code = 0; code <= 13; ++code) EXPECT_STRNE(CodeName(code), "UNKNOWN") << code;
  EXPECT_STREQ(CodeName(14), "UNKNOWN");
  EXPECT_STREQ(CodeName(-1), "UNKNOWN");
}

TEST(StatusTest, FromErrnoKeepsCallNumberAndPeer) {
  const Status status = Status::FromErrno("connect", ECONNREFUSED, 3);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.sys_errno(), ECONNREFUSED);
  EXPECT_EQ(status.peer(), 3);
  EXPECT_EQ(status.message(), "connect failed: Connection refused");
  EXPECT_EQ(Status::FromErrno("accept", EMFILE).code(), Code::kResourceExhausted);
}

TEST(StatusTest, ContextGoesInFrontAndLeavesTheRest) {
  const Status status = Status(Code::kPeerLost, "closed", 2, EPIPE).WithContext("allreduce 'x'");
  EXPECT_EQ(status.message(), "allreduce 'x': closed");
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 2);
  EXPECT_EQ(status.sys_errno(), EPIPE);
  EXPECT_EQ(Status(Code::kDeadlineExceeded, "").WithContext("barrier").message(), "barrier");
  EXPECT_TRUE(Status::Ok().WithContext("barrier").ok());
}

Result<std::unique_ptr<int>> Half(int number) {
  if (number % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return std::make_unique<int>(number / 2);
}

TEST(ResultTest, HoldsAValueOrAStatus) {
  Result<std::unique_ptr<int>> good = Half(4);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good.status().ok());
  EXPECT_EQ(*good.Take(), 2);
  const Result<std::unique_ptr<int>> bad = Half(3);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(), "odd");
}

}  // namespace
}  // namespace tfc
