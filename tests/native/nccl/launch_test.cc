#include "device/nccl/launch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

Operation AllReduce(Dtype dtype, Op op, double prescale = 1.0, double postscale = 1.0) {
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.dtype = dtype;
  operation.op = op;
  operation.prescale = prescale;
  operation.postscale = postscale;
  return operation;
}

TEST(ReductionOfTest, UsesWhatNcclHas) {
  const auto average = ReductionOf(AllReduce(Dtype::kFloat16, Op::kAverage), 4);
  ASSERT_TRUE(average.ok());
  EXPECT_EQ(average.value().type, kNcclFloat16);
  EXPECT_EQ(average.value().op, kNcclAvg);
  EXPECT_FALSE(average.value().premultiplied);
}

TEST(ReductionOfTest, ScalesBecomeOneFactor) {
  const auto sum = ReductionOf(AllReduce(Dtype::kFloat32, Op::kSum, 0.5, 4), 4);
  EXPECT_TRUE(sum.value().premultiplied);
  EXPECT_EQ(sum.value().factor, 2.0);
  const auto average = ReductionOf(AllReduce(Dtype::kFloat64, Op::kAverage, 2), 4);
  EXPECT_EQ(average.value().factor, 0.5);
  EXPECT_EQ(average.value().op, kNcclSum);
  // A gradient_predivide_factor cancels out.
  EXPECT_FALSE(ReductionOf(AllReduce(Dtype::kFloat64, Op::kAverage, 0.25, 4), 4).value().premultiplied);
}

TEST(ReductionOfTest, SaysWhatNcclLacks) {
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kInt16, Op::kSum), 2).status().code(), Code::kUnimplemented);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kUint16, Op::kSum), 2).status().code(), Code::kUnimplemented);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kFloat32, Op::kMax, 2), 2).status().code(), Code::kUnimplemented);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kInt32, Op::kSum, 2), 2).status().code(), Code::kUnimplemented);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kBool, Op::kAverage), 2).status().code(), Code::kUnimplemented);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kInt32, Op::kAverage), 2).status().code(), Code::kUnimplemented);
  EXPECT_TRUE(ReductionOf(AllReduce(Dtype::kInt64, Op::kAverage), 2).ok());
}

TEST(ReductionOfTest, BoolIsOrAndAnd) {
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kBool, Op::kSum), 2).value().op, kNcclMax);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kBool, Op::kProduct), 2).value().op, kNcclMin);
}

// The bits that the CPU's reduction gives for factor * 1.
uint16_t Reference(Dtype dtype, double factor) {
  const uint16_t one = dtype == Dtype::kFloat16 ? 0x3c00 : 0x3f80;
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.op = Op::kSum;
  reduction.prescale = factor;
  uint16_t result = 0;
  const auto* input = reinterpret_cast<const std::byte*>(&one);
  ReduceArrays(reduction, &input, 1, reinterpret_cast<std::byte*>(&result), 1, false);
  return result;
}

TEST(ReductionOfTest, TheAverageOfOneRankIsItsInput) {
  const auto average = ReductionOf(AllReduce(Dtype::kFloat64, Op::kAverage), 1);
  EXPECT_EQ(average.value().op, kNcclSum);
  EXPECT_FALSE(average.value().premultiplied);
  EXPECT_EQ(ReductionOf(AllReduce(Dtype::kFloat64, Op::kAverage, 3), 1).value().factor, 3.0);
}

TEST(PartsOfOneRankTest, AreWhatBlocksShareWithoutARest) {
  constexpr size_t kBlock = size_t{16} << 10;
  for (size_t bytes = 0; bytes < 80 * kBlock; bytes += 1000) {
    const auto parts = PartsOfOneRank(bytes);
    EXPECT_EQ(parts[0] + parts[1] + parts[2], bytes);
    EXPECT_EQ(parts[0] % (32 * kBlock), 0U);
    EXPECT_EQ(parts[1] % kBlock, 0U);
    EXPECT_LT(parts[1], 32 * kBlock);
    EXPECT_LT(parts[2], kBlock);
  }
}

TEST(MaxBlocksTest, AllQueuesFindRoomOnTheGpuTogether) {
  GpuInfo gpu;
  gpu.multiprocessors = 132;
  EXPECT_EQ(MaxBlocks(gpu, 4, 0), 33);
  EXPECT_EQ(MaxBlocks(gpu, 4, 8), 8);
  EXPECT_EQ(MaxBlocks(gpu, 4, 64), 33) << "the user's limit must not bring a deadlock";
  gpu.multiprocessors = 3;
  EXPECT_EQ(MaxBlocks(gpu, 4, 0), 1);
}

TEST(MaxBlocksTest, OfAnUnknownGpuNothingIsAssumed) {
  EXPECT_EQ(MaxBlocks(GpuInfo(), 4, 0), 0);
  EXPECT_EQ(MaxBlocks(GpuInfo(), 4, 8), 8);
}

TEST(ScalarOfTest, RoundsAsTheCpuDoes) {
  const double factors[] = {1.0,  0.5,     1.0 / 3, -1.0 / 3, 1.0 / 7, 0.1,       65504, 65519.9, 1e-3,
                            6e-5, 6.1e-5,  5.96e-8, 1e-7,     3.1e-5,  -2.5e-6,   2049,  2051,    1024.5,
                            0.25, 1.0 / 6, 12345.6, 1e-8,     2.98e-8, 2.9802e-8, 1e5,   0.0,     1.0 / 1024};
  for (const double factor : factors) {
    EXPECT_EQ(ScalarOf(kNcclFloat16, factor), Reference(Dtype::kFloat16, factor)) << factor;
    EXPECT_EQ(ScalarOf(kNcclBfloat16, factor), Reference(Dtype::kBfloat16, factor)) << factor;
  }
}

TEST(ScalarOfTest, WideTypesAreExact) {
  uint64_t bits = ScalarOf(kNcclFloat64, 1.0 / 3);
  double wide = 0;
  std::memcpy(&wide, &bits, sizeof(wide));
  EXPECT_EQ(wide, 1.0 / 3);
  bits = ScalarOf(kNcclFloat32, 1.0 / 3);
  float single = 0;
  std::memcpy(&single, &bits, sizeof(single));
  EXPECT_EQ(single, 1.0f / 3);
}

}  // namespace
}  // namespace tfc
