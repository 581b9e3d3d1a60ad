#include "communicator/operation.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

Operation AllGather(std::vector<int64_t> shape) {
  static float memory[64];
  Operation operation;
  operation.collective = Collective::kAllGather;
  operation.shape = shape;
  size_t count = 1;
  for (int64_t dimension : shape) count *= static_cast<size_t>(dimension);
  operation.input = {{reinterpret_cast<const std::byte*>(memory), count * sizeof(float)}};
  operation.allocate = [](const std::vector<int64_t>&) -> std::byte* { return nullptr; };
  return operation;
}

TEST(OperationTest, SignaturesOfRaggedOperationsIgnoreTheRows) {
  EXPECT_EQ(AllGather({2, 3}).Signature(), AllGather({5, 3}).Signature());
  EXPECT_NE(AllGather({2, 3}).Signature(), AllGather({2, 4}).Signature());
  EXPECT_NE(AllGather({6}).Signature(), AllGather({2, 3}).Signature());
}

TEST(OperationTest, SignaturesTellOperationsApart) {
  Operation reduce;
  reduce.collective = Collective::kAllReduce;
  reduce.shape = {2, 3};
  Operation other = reduce;
  EXPECT_EQ(reduce.Signature(), other.Signature());
  other.op = Op::kMax;
  EXPECT_NE(reduce.Signature(), other.Signature());
  other = reduce;
  other.shape = {3, 2};
  EXPECT_NE(reduce.Signature(), other.Signature());
  other = reduce;
  other.dtype = Dtype::kInt32;
  EXPECT_NE(reduce.Signature(), other.Signature());
  other = reduce;
  other.name = "w";
  EXPECT_NE(reduce.Signature(), other.Signature());
}

TEST(OperationTest, ChecksWhatOneRankCanCheck) {
  EXPECT_TRUE(AllGather({2, 3}).Check(4).ok());
  Operation scalar = AllGather({2});
  scalar.shape.clear();
  EXPECT_EQ(scalar.Check(4).code(), Code::kInvalidArgument);
  Operation splits = AllGather({6});
  splits.collective = Collective::kAllToAll;
  EXPECT_EQ(splits.Check(4).code(), Code::kInvalidArgument);  // 6 rows for 4 ranks
  splits.splits = {1, 2, 3, 0};
  EXPECT_TRUE(splits.Check(4).ok());
  splits.splits = {1, 2, 3, -1};
  EXPECT_EQ(splits.Check(4).code(), Code::kInvalidArgument);
  splits.splits = {1, 2, 2, 0};
  EXPECT_EQ(splits.Check(4).code(), Code::kInvalidArgument);
  Operation huge = AllGather({1});
  huge.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_EQ(huge.Check(4).code(), Code::kInvalidArgument);
}

TEST(OperationTest, RowsAreDealtFromTheFirstRank) {
  EXPECT_EQ(DealRows(7, 3), (std::vector<int64_t>{0, 3, 5, 7}));
  EXPECT_EQ(DealRows(0, 2), (std::vector<int64_t>{0, 0, 0}));
}

}  // namespace
}  // namespace tfc
