#include "base/cpu_quota.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace tfc {
namespace {

// A folder that stands for /proc/self and holds what is mounted, too.
class CpuQuotaTest : public ::testing::Test {
 protected:
  CpuQuotaTest() {
    char made[] = "/tmp/tfc_cpu_quota_XXXXXX";
    folder_ = ::mkdtemp(made);
  }
  ~CpuQuotaTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  // The hierarchy `kind` ("cgroup2", "cgroup"), of which the group `root` is mounted at `point` of the folder.
  std::string Mounted(const std::string& kind, const std::string& root, const std::string& point,
                      const std::string& controllers = "rw") const {
    return "31 23 0:28 " + root + " " + (folder_ / point).string() + " rw,relatime shared:9 - " + kind + " none " +
           controllers + "\n";
  }
  uint64_t InodeOf(const std::string& path) const {
    struct stat info = {};
    EXPECT_EQ(::stat((folder_ / path).c_str(), &info), 0);
    return info.st_ino;
  }
  CpuQuota Current() const { return CpuQuota::Current(folder_.string()); }

 private:
  std::filesystem::path folder_;
};

TEST_F(CpuQuotaTest, TheTightestOfNestedGroupsCounts) {
  Write("mountinfo", Mounted("cgroup2", "/", "unified"));
  Write("cgroup", "0::/job/rank\n");
  Write("unified/job/cpu.max", "150000 100000\n");
  Write("unified/job/rank/cpu.max", "400000 100000\n");
  EXPECT_EQ(Current().millicores, 1500);
  EXPECT_EQ(Current().group, InodeOf("unified/job"));
  Write("unified/job/cpu.max", "max 100000\n");
  EXPECT_EQ(Current().millicores, 4000);
  EXPECT_EQ(Current().group, InodeOf("unified/job/rank"));
}

TEST_F(CpuQuotaTest, VersionOneCounts) {
  Write("mountinfo", Mounted("cgroup", "/", "set", "rw,cpuset") + Mounted("cgroup", "/", "cpu", "rw,cpu,cpuacct") +
                         Mounted("cgroup2", "/", "unified"));
  Write("cgroup", "4:cpuset:/\n3:cpu,cpuacct:/docker/1\n0::/\n");
  Write("cpu/docker/1/cpu.cfs_quota_us", "250000\n");
  Write("cpu/docker/1/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Current().millicores, 2500);
  Write("cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(Current().limited());
}

// A container sees its own group as the root of the mount; what the kernel calls it may lie above or elsewhere.
TEST_F(CpuQuotaTest, AContainerSeesItsOwnGroupOnly) {
  Write("mountinfo", Mounted("cgroup2", "/kubepods/pod1", "unified"));
  Write("unified/cpu.max", "200000 100000\n");
  for (const char* group : {"0::/kubepods/pod1\n", "0::/\n", "0::/kubepods/pod12\n"}) {
    Write("cgroup", group);
    EXPECT_EQ(Current().millicores, 2000) << group;
  }
}

TEST_F(CpuQuotaTest, WhereTheKernelDoesNotSayThereIsNone) {
  EXPECT_FALSE(Current().limited());
  Write("mountinfo", "nonsense\n" + Mounted("cgroup2", "/", "unified"));
  Write("cgroup", "nonsense\n0::/gone\n");
  EXPECT_FALSE(Current().limited());
}

TEST(CpuQuotaText, ComesBackOrIsRefused) {
  const CpuQuota quota{2500, 0x1f3};
  EXPECT_EQ(quota.ToString(), "2500@1f3");
  auto parsed = CpuQuota::Parse(quota.ToString());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().millicores, 2500);
  EXPECT_EQ(parsed.value().group, 0x1f3u);
  EXPECT_FALSE(CpuQuota::Parse(CpuQuota().ToString()).value().limited());
  for (const char* text : {"", "@", "12", "12@", "@12", "-1@0", "1@zz", "1@1 "})
    EXPECT_EQ(CpuQuota::Parse(text).status().code(), Code::kInvalidArgument) << text;
}

}  // namespace
}  // namespace tfc
