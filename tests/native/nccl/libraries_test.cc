#include "device/nccl/libraries.h"

#include <gtest/gtest.h>

#include "standin.h"

namespace tfc {
namespace {

const std::string kStandins = TFC_STANDINS;

class LibrariesTest : public ::testing::Test {
 protected:
  LibrariesTest() { standin_reset(); }
  ~LibrariesTest() override { standin_reset(); }
};

DeviceOptions Chosen(const std::string& nccl) {
  DeviceOptions options;
  options.cuda_library = kStandins + "/libcuda_standin.so";
  options.nccl_library = kStandins + "/" + nccl;
  return options;
}

TEST_F(LibrariesTest, TheChosenFilesAreLoaded) {
  const auto cuda = LoadCuda(Chosen("libnccl_standin.so"));
  ASSERT_TRUE(cuda.ok()) << cuda.status().message();
  EXPECT_EQ(cuda.value()->version, 13000);
  const auto nccl = LoadNccl(Chosen("libnccl_standin.so"));
  ASSERT_TRUE(nccl.ok()) << nccl.status().message();
  EXPECT_EQ(nccl.value()->version, 22703);
  EXPECT_EQ(nccl.value()->path, kStandins + "/libnccl_standin.so");
  EXPECT_EQ(NcclVersionText(nccl.value()->version), "2.27.3");
}

TEST_F(LibrariesTest, AnAbsentDriverIsNamed) {
  DeviceOptions options;
  options.cuda_library = "/nowhere/libcuda.so.1";
  const auto cuda = LoadCuda(options);
  EXPECT_EQ(cuda.status().code(), Code::kUnimplemented);
  EXPECT_NE(cuda.status().message().find("/nowhere/libcuda.so.1"), std::string::npos) << cuda.status().message();
}

TEST_F(LibrariesTest, ADriverThatDoesNotComeUpSaysWhy) {
  standin_set("fail:cuInit", 1);
  const auto cuda = LoadCuda(Chosen(""));
  EXPECT_EQ(cuda.status().code(), Code::kDevice);
  EXPECT_NE(cuda.status().message().find("cuInit: an illegal memory access"), std::string::npos)
      << cuda.status().message();
}

TEST_F(LibrariesTest, AnAbsentNcclNamesAllThatWasTried) {
  DeviceOptions options;
  options.nccl_candidates = {"/nowhere/libnccl.so.2"};
  const auto nccl = LoadNccl(options);
  if (nccl.ok()) GTEST_SKIP() << "this machine has " << nccl.value()->path;
  EXPECT_EQ(nccl.status().code(), Code::kUnimplemented);
  for (const char* part : {"/nowhere/libnccl.so.2", "libnccl.so.2: ", "TFCOLLECTIVE_NCCL", "nvidia-nccl-cu12"})
    EXPECT_NE(nccl.status().message().find(part), std::string::npos) << nccl.status().message();
}

TEST_F(LibrariesTest, CandidatesAreTriedInOrder) {
  DeviceOptions options;
  options.nccl_candidates = {"/nowhere/libnccl.so.2", kStandins + "/libnccl_incomplete.so",
                             kStandins + "/libnccl_standin.so"};
  const auto nccl = LoadNccl(options);
  ASSERT_TRUE(nccl.ok()) << nccl.status().message();
  EXPECT_EQ(nccl.value()->path, kStandins + "/libnccl_standin.so");
}

TEST_F(LibrariesTest, AnOldVersionIsRefused) {
  standin_set("version", 21703);
  const auto nccl = LoadNccl(Chosen("libnccl_standin.so"));
  EXPECT_EQ(nccl.status().code(), Code::kUnimplemented);
  EXPECT_NE(nccl.status().message().find("2.17.3, and 2.18.0 or newer is needed"), std::string::npos)
      << nccl.status().message();
}

TEST_F(LibrariesTest, MissingSymbolsAreNamed) {
  const auto nccl = LoadNccl(Chosen("libnccl_incomplete.so"));
  EXPECT_EQ(nccl.status().code(), Code::kUnimplemented);
  EXPECT_NE(nccl.status().message().find("ncclCommAbort"), std::string::npos) << nccl.status().message();
}

TEST_F(LibrariesTest, AnotherLibraryIsRefused) {
  const auto nccl = LoadNccl(Chosen("libcuda_standin.so"));
  EXPECT_EQ(nccl.status().code(), Code::kUnimplemented);
  EXPECT_NE(nccl.status().message().find("it is no NCCL"), std::string::npos) << nccl.status().message();
}

}  // namespace
}  // namespace tfc
