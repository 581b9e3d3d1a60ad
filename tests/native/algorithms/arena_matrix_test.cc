// The matrix over the arena: collective x world x type x operation x odd sizes, compared bit by bit.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "algorithms/arena_worlds.h"
#include "algorithms/values.h"
#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

const std::vector<Op>& AllOps() {
  static const std::vector<Op> all = {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct};
  return all;
}

Reduction ReductionOf(Dtype dtype, Op op, int size) {
  return Reduction{dtype, op == Op::kAverage ? Op::kSum : op, 1.0, 1.0, op == Op::kAverage ? size : 1};
}

ConstSpans Whole(const Bytes& bytes) { return {ConstSpan{bytes.data(), bytes.size()}}; }

std::string Name(const testing::TestParamInfo<ArenaWorld>& info) {
  return "ranks" + std::to_string(info.param.size) + "_channel" + std::to_string(info.param.channel) +
         (info.param.own_mappings ? "_own" : "_shared");
}

class ArenaMatrix : public testing::TestWithParam<ArenaWorld> {
 protected:
  int size() const { return GetParam().size; }
  void Run(const std::function<void(ArenaRank&)>& body) { OnEveryArenaRank(GetParam(), body); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, ArenaMatrix,
                         testing::Values(ArenaWorld{1, 0, 0, false}, ArenaWorld{2, 0, 20, true},
                                         ArenaWorld{2, 1, 0, false}, ArenaWorld{3, 0, 0, false},
                                         ArenaWorld{4, 1, 0, true, true}, ArenaWorld{5, 0, 0, false}),
                         Name);

// One all-reduce of one case, in spans of odd lengths; in place every second time.
void CheckAllReduce(ArenaRank& self, Dtype dtype, Op op, size_t count) {
  const size_t element = DtypeSize(dtype), seed = self.sequence() % 3;
  const bool in_place = self.sequence() % 2 == 1;
  Bytes input = InputBytes(dtype, op, self.size(), self.rank(), count);
  const Bytes untouched = input;
  Bytes output(in_place ? 0 : input.size());
  const MutableSpans from = CutUp(input.data(), input.size(), element, seed);
  const MutableSpans to = in_place ? from : CutUp(output.data(), output.size(), element, (seed + 1) % 3);
  const Status status = ArenaAllReduce(self.Next(), ReductionOf(dtype, op, self.size()), AsConst(from), to);
  ASSERT_TRUE(status.ok()) << status.message();
  const Bytes& result = in_place ? input : output;
  ASSERT_TRUE(result == ExpectedBytes(dtype, op, self.size(), count))
      << OpName(op) << " of " << count << " " << DtypeName(dtype) << " on rank " << self.rank();
  ASSERT_TRUE(in_place || input == untouched);
}

TEST_P(ArenaMatrix, AllReduceOfEveryTypeAndOperation) {
  Run([&](ArenaRank& self) {
    for (Dtype dtype : AllDtypes()) {
      for (Op op : AllOps()) {
        if (!CheckReduction(ReductionOf(dtype, op, size())).ok()) continue;
        for (size_t count : {0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 1000, 4099}) CheckAllReduce(self, dtype, op, count);
      }
    }
  });
}

TEST_P(ArenaMatrix, AllReduceOfManySegments) {
  Run([&](ArenaRank& self) {
    for (Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kInt64, Dtype::kInt8}) {
      for (size_t count : {100003, 65536, 65537, 700001}) CheckAllReduce(self, dtype, Op::kSum, count);
    }
  });
}

// Large enough for stores that bypass the cache.
TEST_P(ArenaMatrix, AllReduceOfALargeBuffer) {
  Run([&](ArenaRank& self) { CheckAllReduce(self, Dtype::kInt32, Op::kSum, (9u << 18) + 3); });
}

// The spans name the same memory over and over: the length is beyond 32 bits, the memory is not.
TEST(ArenaLongBuffer, LongerThanTwoGibibytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "takes minutes with a sanitizer";
#endif
  OnEveryArenaRank(ArenaWorld{2, 0, 50, true}, [](ArenaRank& self) {
    Bytes input(1 << 20, std::byte{3}), output(input.size());
    ConstSpans from(2049, ConstSpan{input.data(), input.size()});
    MutableSpans to(2049, MutableSpan{output.data(), output.size()});
    Bytes end(5);
    from.push_back({input.data(), end.size()});
    to.push_back({end.data(), end.size()});
    const Status status = ArenaAllReduce(self.Next(), Reduction{Dtype::kInt8, Op::kSum, 1.0, 1.0, 1}, from, to);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(output == Bytes(output.size(), std::byte{6}));
    EXPECT_TRUE(end == Bytes(5, std::byte{6}));
  });
}

Bytes RandomBytes(Dtype dtype, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * DtypeSize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % 2000001) - 1000000) / 997.0f;
    const Reduction convert{dtype, Op::kSum, static_cast<double>(value), 1.0, 1};
    const uint16_t one = dtype == Dtype::kFloat16 ? 0x3c00 : 0x3f80;
    const std::byte* from = reinterpret_cast<const std::byte*>(&one);
    if (dtype == Dtype::kFloat32) {
      std::memcpy(bytes.data() + i * 4, &value, 4);
    } else {
      ReduceArrays(convert, &from, 1, bytes.data() + i * 2, 1);
    }
  }
  return bytes;
}

// Rounding shows any difference in the order, or a second rounding.
TEST_P(ArenaMatrix, InexactResultsAreThoseOfOneReductionInRankOrder) {
  for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
    for (size_t count : {33, 5000, 200001}) {
      Reduction reduction{dtype, Op::kSum, 0.3, 1.1, size()};
      std::vector<Bytes> inputs;
      std::vector<const std::byte*> pointers;
      for (int rank = 0; rank < size(); ++rank)
        inputs.push_back(RandomBytes(dtype, count, static_cast<unsigned>(rank)));
      for (const Bytes& input : inputs) pointers.push_back(input.data());
      Bytes expected(inputs[0].size());
      ReduceArrays(reduction, pointers.data(), pointers.size(), expected.data(), count);
      Run([&](ArenaRank& self) {
        Bytes output(expected.size() + 64);
        // Another alignment on every rank.
        const MutableSpans to = {{output.data() + 2 * self.rank(), expected.size()}};
        const Bytes& input = inputs[static_cast<size_t>(self.rank())];
        ASSERT_TRUE(ArenaAllReduce(self.Next(), reduction, Whole(input), to).ok());
        EXPECT_EQ(std::memcmp(to[0].data, expected.data(), expected.size()), 0) << DtypeName(dtype) << " " << count;
      });
    }
  }
}

// Parts of uneven length, some of them empty.
std::vector<size_t> UnevenOffsets(int parts, size_t unit, size_t element) {
  std::vector<size_t> offsets = {0};
  for (int i = 0; i < parts; ++i)
    offsets.push_back(offsets.back() + static_cast<size_t>((i * 3 + 1) % 4) * unit * element);
  return offsets;
}

void CheckReduceScatter(ArenaRank& self, Dtype dtype, size_t unit) {
  const size_t element = DtypeSize(dtype), own = static_cast<size_t>(self.rank());
  const std::vector<size_t> offsets = UnevenOffsets(self.size(), unit, element);
  const size_t count = offsets.back() / element;
  Bytes input = InputBytes(dtype, Op::kSum, self.size(), self.rank(), count);
  Bytes separate(offsets[own + 1] - offsets[own]);
  const bool in_place = self.sequence() % 2 == 1;
  std::byte* to = in_place ? input.data() + offsets[own] : separate.data();
  const MutableSpans from = CutUp(input.data(), input.size(), element, self.sequence() % 3);
  const MutableSpans output = CutUp(to, separate.size(), element, in_place ? 0 : 2);
  const Status status =
      ArenaReduceScatter(self.Next(), ReductionOf(dtype, Op::kSum, self.size()), AsConst(from), offsets, output);
  ASSERT_TRUE(status.ok()) << status.message();
  const Bytes expected = ExpectedBytes(dtype, Op::kSum, self.size(), count);
  EXPECT_TRUE(std::equal(to, to + separate.size(), expected.begin() + static_cast<std::ptrdiff_t>(offsets[own])))
      << DtypeName(dtype) << " unit " << unit << " rank " << self.rank();
}

TEST_P(ArenaMatrix, ReduceScatter) {
  Run([&](ArenaRank& self) {
    for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kUint8, Dtype::kFloat64}) {
      for (size_t unit : {0, 1, 3, 1000, 100003}) CheckReduceScatter(self, dtype, unit);
    }
  });
}

TEST_P(ArenaMatrix, AllGather) {
  Run([&](ArenaRank& self) {
    for (size_t unit : {0, 1, 5, 1000, 300007}) {
      for (bool in_place : {false, true}) {
        const size_t own = static_cast<size_t>(self.rank());
        const std::vector<size_t> offsets = UnevenOffsets(self.size(), unit, 1);
        const auto value = [](size_t i) { return static_cast<std::byte>(i * 7 + i / 251); };
        Bytes output(offsets.back()), separate, expected(offsets.back());
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = value(i);
        for (size_t i = offsets[own]; i < offsets[own + 1]; ++i)
          (in_place ? output[i] : separate.emplace_back()) = value(i);
        std::byte* from = in_place ? output.data() + offsets[own] : separate.data();
        const ConstSpans input = AsConst(CutUp(from, offsets[own + 1] - offsets[own], 1, 1));
        const MutableSpans to = CutUp(output.data(), output.size(), 1, self.sequence() % 3);
        const Status status = ArenaAllGather(self.Next(), input, offsets, to);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(output == expected) << "unit " << unit << " rank " << self.rank();
      }
    }
  });
}

TEST_P(ArenaMatrix, Broadcast) {
  Run([&](ArenaRank& self) {
    for (int root = 0; root < size(); ++root) {
      for (size_t count : {0, 1, 63, 5000, 262144, 3000001}) {
        Bytes expected(count), memory(count);
        for (size_t i = 0; i < count; ++i)
          expected[i] = static_cast<std::byte>(i * 5 + i / 509 + static_cast<size_t>(root));
        const bool is_root = self.rank() == root, in_place = root % 2 == 0;
        if (is_root && in_place) memory = expected;
        const ConstSpans input = is_root ? Whole(in_place ? memory : expected) : ConstSpans();
        const MutableSpans output = CutUp(memory.data(), count, 1, self.sequence() % 3);
        const Status status = ArenaBroadcast(self.Next(), root, input, output);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(memory == expected) << count << " bytes from " << root << " on rank " << self.rank();
      }
    }
  });
}

void CheckAllToAll(ArenaRank& self, size_t unit) {
  const size_t ranks = static_cast<size_t>(self.size()), own = static_cast<size_t>(self.rank());
  std::vector<size_t> sizes;
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) sizes.push_back((from * 2 + to * 3 + 1) % 4 * unit);
  }
  const auto value = [](size_t from, size_t to, size_t i) {
    return static_cast<std::byte>(from * 31 + to * 7 + i + i / 255);
  };
  Bytes input, expected;
  for (size_t peer = 0; peer < ranks; ++peer) {
    for (size_t i = 0; i < sizes[own * ranks + peer]; ++i) input.push_back(value(own, peer, i));
    for (size_t i = 0; i < sizes[peer * ranks + own]; ++i) expected.push_back(value(peer, own, i));
  }
  Bytes output(expected.size());
  const ConstSpans from = AsConst(CutUp(input.data(), input.size(), 1, 2));
  const Status status = ArenaAllToAll(self.Next(), sizes, from, CutUp(output.data(), output.size(), 1, 1));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(output == expected) << "unit " << unit << " rank " << self.rank();
}

TEST_P(ArenaMatrix, AllToAll) {
  Run([&](ArenaRank& self) {
    for (size_t unit : {0, 1, 9, 1000, 200003}) CheckAllToAll(self, unit);
  });
}

TEST_P(ArenaMatrix, NoRankLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> arrived{0};
  Run([&](ArenaRank& self) {
    for (int i = 1; i <= 50; ++i) {
      ++arrived;
      ASSERT_TRUE(ArenaBarrier(self.Next()).ok());
      EXPECT_GE(arrived.load(), i * size());
    }
  });
}

// Slots are used over and over by operations of different kinds and lengths.
TEST_P(ArenaMatrix, AThousandMixedOperationsBackToBack) {
  Run([&](ArenaRank& self) {
    for (size_t i = 0; i < 1000; ++i) {
      switch (i % 5) {
        case 0:
          CheckAllReduce(self, Dtype::kFloat32, Op::kSum, i * 13 % 7000);
          break;
        case 1:
          CheckAllReduce(self, Dtype::kBfloat16, Op::kMax, i % 3);
          break;
        case 2:
          CheckReduceScatter(self, Dtype::kInt16, i % 50);
          break;
        case 3:
          CheckAllToAll(self, i % 20);
          break;
        default:
          ASSERT_TRUE(ArenaBarrier(self.Next()).ok());
      }
      if (testing::Test::HasFailure()) return;
    }
  });
}

}  // namespace
}  // namespace tfc
