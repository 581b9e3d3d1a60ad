#include "base/span.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tfc {
namespace {

ConstSpan Of(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

std::string Text(const ConstSpans& spans) {
  std::string text(TotalSize(spans), '?');
  Gather(spans, reinterpret_cast<std::byte*>(text.data()));
  return text;
}

TEST(SpanTest, EverySliceEqualsThatOfTheConcatenation) {
  const std::vector<std::string> parts = {"ab", "", "cdefg", "h", "", "ij"};
  ConstSpans spans;
  std::string whole;
  for (const std::string& part : parts) {
    spans.push_back(Of(part));
    whole += part;
  }
  EXPECT_EQ(TotalSize(spans), whole.size());
  for (size_t begin = 0; begin <= whole.size(); ++begin) {
    for (size_t end = begin; end <= whole.size() + 2; ++end) {
      EXPECT_EQ(Text(Slice(spans, begin, end)), whole.substr(begin, end - begin)) << begin << ".." << end;
    }
  }
}

TEST(SpanTest, SliceHasNoEmptyPiecesAndPointsIntoTheSameMemory) {
  const std::string text = "abcdef";
  const ConstSpans spans = {Of(text), ConstSpan{}};
  EXPECT_TRUE(Slice(spans, 3, 3).empty());
  ASSERT_EQ(Slice(spans, 2, 5).size(), 1u);
  EXPECT_EQ(Slice(spans, 2, 5)[0].data, Of(text).data + 2);
}

TEST(SpanTest, ScatterUndoesGather) {
  const std::string text = "abcdefgh";
  std::string a(3, '.');
  std::string b(5, '.');
  const MutableSpans to = {
      {reinterpret_cast<std::byte*>(a.data()), 3}, {}, {reinterpret_cast<std::byte*>(b.data()), 5}};
  Scatter(Of(text).data, to);
  EXPECT_EQ(a + b, text);
  EXPECT_EQ(Text(AsConst(to)), text);
  EXPECT_EQ(TotalSize(to), 8u);
}

}  // namespace
}  // namespace tfc
