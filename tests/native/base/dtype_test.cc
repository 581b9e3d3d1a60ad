#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tfcollective/tfcollective.h"

namespace tfc {
namespace {

TEST(DtypeTest, HasTheNumbersOfTheHeader) {
  EXPECT_EQ(static_cast<int>(Dtype::kFloat16), TFC_FLOAT16);
  EXPECT_EQ(static_cast<int>(Dtype::kBfloat16), TFC_BFLOAT16);
  EXPECT_EQ(static_cast<int>(Dtype::kInt64), TFC_INT64);
  EXPECT_EQ(static_cast<int>(Dtype::kBool), TFC_BOOL);
  EXPECT_EQ(static_cast<int>(Op::kAverage), TFC_AVERAGE);
  EXPECT_EQ(static_cast<int>(Op::kMin), TFC_MIN);
  EXPECT_EQ(static_cast<int>(Op::kProduct), TFC_PRODUCT);
}

TEST(DtypeTest, KnowsExactlyItsOwnNumbers) {
  std::set<std::string> names;
  for (int number = 0; number <= 12; ++number) {
    EXPECT_TRUE(IsDtype(number));
    names.insert(DtypeName(static_cast<Dtype>(number)));
  }
  EXPECT_EQ(names.size(), 13u);
  EXPECT_FALSE(IsDtype(13));
  EXPECT_FALSE(IsDtype(-1));
  EXPECT_EQ(DtypeSize(static_cast<Dtype>(99)), 0u);
  for (const int number : {0, 1, 3, 4, 5}) EXPECT_TRUE(IsOp(number));
  for (const int number : {-1, 2, 6}) EXPECT_FALSE(IsOp(number));
}

TEST(DtypeTest, SizesAndKinds) {
  EXPECT_EQ(DtypeSize(Dtype::kBool), 1u);
  EXPECT_EQ(DtypeSize(Dtype::kBfloat16), 2u);
  EXPECT_EQ(DtypeSize(Dtype::kFloat32), 4u);
  EXPECT_EQ(DtypeSize(Dtype::kUint64), 8u);
  EXPECT_TRUE(IsFloating(Dtype::kBfloat16));
  EXPECT_FALSE(IsFloating(Dtype::kInt32));
  EXPECT_STREQ(DtypeName(Dtype::kFloat32), "float32");
  EXPECT_STREQ(OpName(Op::kSum), "sum");
}

}  // namespace
}  // namespace tfc
