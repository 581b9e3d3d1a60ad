// Connections without the job key, to every port of a job: before it starts and while it runs.
#include "testing/crowd.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "capi/communicator_impl.h"
#include "testing/world.h"

namespace tfc::testing {
namespace {

constexpr size_t kCrowd = 2000;

class CrowdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!AllowDescriptors(3 * kCrowd + 2000)) GTEST_SKIP() << "too few descriptors";
    options_.size = 3;
    options_.nodes = {"a", "b", "c"};
    options_.connect_timeout_s = 120;
    options_.op_timeout_s = 120;
    options_.on_listening = [this](const std::vector<std::string>& addresses) {
      for (const std::string& text : addresses) addresses_.push_back(PeerAddress::Parse(text).Take().tcp);
    };
  }

  // Direct calls and calls by name: over connections of data and of control.
  static void Work(int rank, tfc_communicator* communicator, int steps) {
    for (int step = 0; step < steps; ++step) {
      for (const bool by_name : {false, true}) {
        std::vector<float> values(1000, static_cast<float>(rank + step));
        tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "values");
        const tfc_span span{values.data(), values.data(), static_cast<int64_t>(values.size())};
        request.spans = &span;
        request.num_spans = 1;
        const CallResult result = by_name ? SubmitAndWait(communicator, request) : RunNow(communicator, request);
        ASSERT_EQ(result.code, TFC_OK) << result.message;
        EXPECT_EQ(values.back(), static_cast<float>(3 + 3 * step));
      }
    }
  }

  WorldOptions options_;
  std::vector<SocketAddress> addresses_;
};

TEST_F(CrowdTest, AJobStartsBehindTwoThousandConnections) {
  std::unique_ptr<Crowd> crowd;
  const auto parse = options_.on_listening;
  options_.on_listening = [&](const std::vector<std::string>& addresses) {
    parse(addresses);
    crowd = std::make_unique<Crowd>(addresses_[0], kCrowd);
  };
  const std::vector<int> codes = RunWorld(options_, [](int rank, tfc_communicator* job) { Work(rank, job, 3); });
  EXPECT_EQ(codes, std::vector<int>(3, TFC_OK));
}

TEST_F(CrowdTest, ARunningJobDoesNotNoticeThem) {
  const std::vector<int> codes = RunWorld(options_, [this](int rank, tfc_communicator* job) {
    Work(rank, job, 1);
    const Crowd crowd(addresses_[static_cast<size_t>(rank)], kCrowd);
    Work(rank, job, 50);
  });
  EXPECT_EQ(codes, std::vector<int>(3, TFC_OK));
}

}  // namespace
}  // namespace tfc::testing
