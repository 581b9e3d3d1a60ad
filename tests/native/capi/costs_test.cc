// What an operation by name costs a rank, counted in allocations: it does not grow with the number of ranks, although
// rank 0 hears of each of them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "testing/world.h"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounts = false;  // they have an operator of their own
#else
constexpr bool kCounts = true;

void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace tfc::testing {
namespace {

uint64_t CountWhenAllAreHere(tfc_communicator* communicator) {
  const tfc_request barrier = MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM);
  EXPECT_EQ(RunNow(communicator, barrier).code, TFC_OK);
  const uint64_t count = allocations;
  EXPECT_EQ(RunNow(communicator, barrier).code, TFC_OK);
  return count;
}

double AllocationsOfARank(int size) {
  constexpr int kRounds = 20;
  WorldOptions options;
  options.size = size;
  options.op_timeout_s = options.connect_timeout_s = 60;
  uint64_t count = 0;
  const std::vector<int> codes = RunWorld(options, [&](int rank, tfc_communicator* communicator) {
    std::vector<float> values(4, 1.0f);
    const tfc_span span{values.data(), values.data(), static_cast<int64_t>(values.size())};
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_MAX, "an operation that all ranks call by name");
    request.spans = &span;
    request.num_spans = 1;
    const auto rounds = [&] {
      for (int round = 0; round < kRounds; ++round) EXPECT_EQ(SubmitAndWait(communicator, request).code, TFC_OK);
    };
    rounds();  // some are for the first time only
    const uint64_t before = CountWhenAllAreHere(communicator);
    rounds();
    const uint64_t after = CountWhenAllAreHere(communicator);
    if (rank == 0) count = after - before;
  });
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(size), TFC_OK));
  return static_cast<double>(count) / kRounds / size;
}

TEST(CostsTest, AnOperationByNameCostsARankNoMoreWithMoreRanks) {
  if (!kCounts) GTEST_SKIP() << "sanitizers do not let it count";
  EXPECT_LT(AllocationsOfARank(48), 1.4 * AllocationsOfARank(6));  // 44 and 44; 91 and 50 when rank 0 copied views
}

}  // namespace
}  // namespace tfc::testing
