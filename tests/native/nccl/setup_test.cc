#include "device/nccl/setup.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

SetupEntry Able(const std::string& uuid, int version = 22703) {
  SetupEntry entry;
  entry.nccl_version = version;
  entry.nccl_path = "/lib/libnccl.so.2";
  entry.gpu = "GPU 0 (X, 0000:01:00.0)";
  entry.uuid = uuid;
  return entry;
}

TEST(SetupTest, SurvivesTheWire) {
  SetupEntry entry = Able("u");
  entry.id = std::string("\0id", 3);
  SetupEntry back;
  ASSERT_TRUE(Decode(Encode(entry), &back).ok());
  EXPECT_EQ(back.id, entry.id);
  EXPECT_EQ(back.nccl_version, 22703);
  EXPECT_EQ(Decode("x", &back).code(), Code::kProtocol);
}

TEST(SetupTest, VersionsMustBeEqual) {
  const Status status = JudgeSetup({Able("a"), Able("b", 23003)}, MakeTopology(0, {"n", "n"}), false);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("2.27.3"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("2.30.3"), std::string::npos) << status.message();
}

TEST(SetupTest, RanksOfOneHostShareAGpuOnlyIfAllowed) {
  const std::vector<SetupEntry> same{Able("a"), Able("a")};
  const Status refused = JudgeSetup(same, MakeTopology(0, {"n", "n"}), false);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("--oversubscribe-gpus"), std::string::npos) << refused.message();
  EXPECT_TRUE(JudgeSetup(same, MakeTopology(0, {"n", "n"}), true).ok());
  EXPECT_TRUE(JudgeSetup(same, MakeTopology(0, {"n", "m"}), false).ok());
}

}  // namespace
}  // namespace tfc
