// The matrix: collective x world x type x operation x odd sizes, compared bit by bit.
#include "collectives/algorithms/transport_algorithms.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "algorithms/values.h"
#include "algorithms/worlds.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

using AllReduceFunction = Status (*)(const TransportContext&, const Reduction&, const ConstSpans&, const MutableSpans&);

struct World {
  int size;
  size_t eager_bytes;
};

const double kPatience = 60.0;  // seconds: only a broken algorithm ever waits this long

bool Supported(const Reduction& reduction) { return CheckReduction(reduction).ok(); }

class Matrix : public ::testing::TestWithParam<World> {
 protected:
  int size() const { return GetParam().size; }
  // Calls body(context of one operation) on every rank; `sequence` counts operations.
  void Run(const std::function<void(Transport&, const Members&)>& body) {
    OnEveryTransport(size(), GetParam().eager_bytes,
                     [&](Transport& transport) { body(transport, AllMembers(size(), transport.rank())); });
  }
};

TransportContext ContextOf(Transport& transport, const Members& members, uint64_t sequence) {
  return TransportContext{transport, members, Deadline::After(kPatience), 1, sequence, 7, 0};
}

Reduction ReductionOf(Dtype dtype, Op op, int size) {
  return Reduction{dtype, op == Op::kAverage ? Op::kSum : op, 1.0, 1.0, op == Op::kAverage ? size : 1};
}

const std::vector<Op>& AllOps() {
  static const std::vector<Op> all = {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct};
  return all;
}

// One all-reduce of one case; empty if the result is right.
std::string CheckAllReduce(AllReduceFunction all_reduce, const TransportContext& context, Dtype dtype, Op op,
                           size_t count) {
  const int size = context.members.size(), rank = context.members.index;
  const Reduction reduction = ReductionOf(dtype, op, size);
  const size_t element = DtypeSize(dtype), seed = context.sequence % 3;
  const bool in_place = context.sequence % 2 == 1;
  Bytes input = InputBytes(dtype, op, size, rank, count);
  const Bytes untouched = input;
  Bytes output(in_place ? 0 : input.size(), std::byte{0x5a});
  const ConstSpans from = AsConst(CutUp(input.data(), input.size(), element, seed));
  const MutableSpans to = in_place ? CutUp(input.data(), input.size(), element, seed)
                                   : CutUp(output.data(), output.size(), element, 2 * seed);
  const Status status = all_reduce(context, reduction, from, to);
  const std::string what = std::string(DtypeName(dtype)) + " " + OpName(op) + " x" + std::to_string(count) +
                           " on rank " + std::to_string(rank) + (in_place ? " in place" : "");
  if (!status.ok()) return what + ": " + status.message();
  if ((in_place ? input : output) != ExpectedBytes(dtype, op, size, count)) return what + ": wrong result";
  if (!in_place && input != untouched) return what + ": the input was changed";
  return "";
}

void CheckAllReduceMatrix(AllReduceFunction all_reduce, Transport& transport, const Members& members) {
  uint64_t sequence = 0;
  for (size_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (Dtype dtype : AllDtypes()) {
      for (Op op : AllOps()) {
        if (!Supported(ReductionOf(dtype, op, members.size()))) continue;
        for (int repeat = 0; repeat < 2; ++repeat) {  // in place and not
          const std::string error =
              CheckAllReduce(all_reduce, ContextOf(transport, members, sequence++), dtype, op, count);
          ASSERT_EQ(error, "");
        }
      }
    }
  }
}

// Sanitizers make the longest buffers of large worlds take minutes; small worlds run the same code on them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMostRanksOfLongest = 3;
#else
constexpr int kMostRanksOfLongest = 8;
#endif
constexpr size_t kLongest = 1300003;

void CheckLongAllReduce(AllReduceFunction all_reduce, Transport& transport, const Members& members) {
  const std::pair<Dtype, size_t> cases[] = {
      {Dtype::kFloat32, 70001}, {Dtype::kInt8, 70001}, {Dtype::kBfloat16, 140001}, {Dtype::kFloat32, kLongest}};
  uint64_t sequence = 0;
  for (const auto& [dtype, count] : cases) {
    if (count == kLongest && members.size() > kMostRanksOfLongest) continue;
    for (int repeat = 0; repeat < 2; ++repeat) {
      ASSERT_EQ(CheckAllReduce(all_reduce, ContextOf(transport, members, sequence++), dtype, Op::kSum, count), "");
    }
  }
}

TEST_P(Matrix, RingAllReduce) {
  Run([](Transport& transport, const Members& members) { CheckAllReduceMatrix(RingAllReduce, transport, members); });
}
TEST_P(Matrix, RingAllReduceOfLongBuffers) {
  Run([](Transport& transport, const Members& members) { CheckLongAllReduce(RingAllReduce, transport, members); });
}
TEST_P(Matrix, RecursiveDoubling) {
  Run([](Transport& transport, const Members& members) {
    CheckAllReduceMatrix(RecursiveDoublingAllReduce, transport, members);
  });
}
TEST_P(Matrix, RecursiveDoublingOfLongBuffers) {
  Run([](Transport& transport, const Members& members) {
    CheckLongAllReduce(RecursiveDoublingAllReduce, transport, members);
  });
}

TEST_P(Matrix, HalvingDoubling) {
  Run([](Transport& transport, const Members& members) {
    CheckAllReduceMatrix(HalvingDoublingAllReduce, transport, members);
  });
}
TEST_P(Matrix, HalvingDoublingOfLongBuffers) {
  Run([](Transport& transport, const Members& members) {
    CheckLongAllReduce(HalvingDoublingAllReduce, transport, members);
  });
}

TEST_P(Matrix, Direct) {
  Run([](Transport& transport, const Members& members) { CheckAllReduceMatrix(DirectAllReduce, transport, members); });
}
TEST_P(Matrix, DirectOfLongBuffers) {
  Run([](Transport& transport, const Members& members) { CheckLongAllReduce(DirectAllReduce, transport, members); });
}

// By way of float32, where there is one.
Status WideOrDirect(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                    const MutableSpans& output) {
  return IsHalf(reduction.dtype) ? WideAllReduce(context, reduction, input, output)
                                 : DirectAllReduce(context, reduction, input, output);
}

TEST_P(Matrix, Wide) {
  Run([](Transport& transport, const Members& members) { CheckAllReduceMatrix(WideOrDirect, transport, members); });
}
TEST_P(Matrix, WideOfLongBuffers) {
  Run([](Transport& transport, const Members& members) {
    if (members.size() > kMostRanksOfLongest) return;
    ASSERT_EQ(CheckAllReduce(WideAllReduce, ContextOf(transport, members, 0), Dtype::kBfloat16, Op::kSum, 2300003), "");
  });
}

// Any bit pattern of that type but infinities and NaN, of values around 1.
Bytes InexactBytes(Dtype dtype, int rank, size_t count) {
  const uint16_t exponent = dtype == Dtype::kFloat16 ? 0x3800 : 0x3f00,
                 fraction = dtype == Dtype::kFloat16 ? 0x7ff : 0xff;
  Bytes bytes(count * sizeof(uint16_t));
  uint32_t state = 12345u + static_cast<uint32_t>(rank);
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const auto value = static_cast<uint16_t>(exponent | ((state >> 16) & fraction) | (state >> 31 << 15));
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  }
  return bytes;
}

// The same bits as on one node: all inputs in the order of the ranks, rounded once.
TEST_P(Matrix, DirectRoundsOnce) {
  Run([](Transport& transport, const Members& members) {
    uint64_t sequence = 0;
    for (Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
      for (size_t count : {size_t{5}, size_t{100003}}) {
        std::vector<Bytes> all;
        for (int rank = 0; rank < members.size(); ++rank) all.push_back(InexactBytes(dtype, rank, count));
        std::vector<const std::byte*> inputs;
        for (const Bytes& one : all) inputs.push_back(one.data());
        const Reduction reduction{dtype, Op::kSum, 1.0, 0.7, members.size()};
        Bytes expected(all[0].size()), output(all[0].size());
        ReduceArrays(reduction, inputs.data(), inputs.size(), expected.data(), count);
        const Bytes& mine = all[static_cast<size_t>(members.index)];
        const Status status = DirectAllReduce(ContextOf(transport, members, sequence++), reduction,
                                              {{mine.data(), mine.size()}}, {{output.data(), output.size()}});
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(output == expected) << DtypeName(dtype) << " x" << count;
      }
    }
  });
}

// A partial sum that is kept in bfloat16 stops at 256.
TEST(HalfSums, GoOnBeyondWhatTheirPartsCanHold) {
  constexpr int kSize = 300;
  constexpr uint16_t kOne = 0x3f80, kThreeHundred = 0x4396;
  using Function = Status (*)(const TransportContext&, const Reduction&, const ConstSpans&, const MutableSpans&);
  for (const Function all_reduce : {Function{TransportAllReduce}, Function{DirectAllReduce}}) {
    OnEveryTransport(kSize, 4096, [&](Transport& transport) {
      const Members members = AllMembers(kSize, transport.rank());
      std::vector<uint16_t> values(3, kOne);
      const MutableSpans spans{{reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(uint16_t)}};
      const Status status = all_reduce(ContextOf(transport, members, 0), ReductionOf(Dtype::kBfloat16, Op::kSum, kSize),
                                       AsConst(spans), spans);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(values, std::vector<uint16_t>(3, kThreeHundred));
    });
  }
}

// result = (sum of 2 x) / 4 per element: exact for these inputs.
void CheckScaling(AllReduceFunction all_reduce, Transport& transport, const Members& members) {
  uint64_t sequence = 0;
  for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat64}) {
    for (size_t count : {size_t{1}, size_t{777}, size_t{300001}}) {
      const Reduction reduction{dtype, Op::kSum, 2.0, 0.5, members.size()};
      Bytes data = InputBytes(dtype, Op::kAverage, members.size(), members.index, count);
      Bytes output(data.size());
      const Status status = all_reduce(ContextOf(transport, members, sequence++), reduction,
                                       {{data.data(), data.size()}}, {{output.data(), output.size()}});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(output == ExpectedBytes(dtype, Op::kAverage, members.size(), count))
          << DtypeName(dtype) << " x" << count;
    }
  }
}

TEST_P(Matrix, ScalesInputsAndResults) {
  Run([](Transport& transport, const Members& members) { CheckScaling(RingAllReduce, transport, members); });
  Run([](Transport& transport, const Members& members) {
    CheckScaling(RecursiveDoublingAllReduce, transport, members);
  });
  Run([](Transport& transport, const Members& members) { CheckScaling(HalvingDoublingAllReduce, transport, members); });
  Run([](Transport& transport, const Members& members) { CheckScaling(DirectAllReduce, transport, members); });
  Run([](Transport& transport, const Members& members) { CheckScaling(WideOrDirect, transport, members); });
}

// Sums that are not exact: every rank must still have the same bits.
TEST_P(Matrix, RanksAgreeBitwiseOnInexactSums) {
  for (AllReduceFunction all_reduce : {AllReduceFunction{RingAllReduce}, AllReduceFunction{RecursiveDoublingAllReduce},
                                       AllReduceFunction{HalvingDoublingAllReduce}, AllReduceFunction{DirectAllReduce},
                                       AllReduceFunction{WideOrDirect}}) {
    for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
      const size_t bytes = 50001 * DtypeSize(dtype);
      std::vector<Bytes> results(static_cast<size_t>(size()), Bytes(bytes));
      Run([&](Transport& transport, const Members& members) {
        Bytes input(bytes);
        uint32_t state = 12345u + static_cast<uint32_t>(members.index);  // any bit pattern: NaN and infinities too
        for (std::byte& byte : input) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
        Bytes& output = results[static_cast<size_t>(members.index)];
        const Reduction reduction{dtype, Op::kSum, 1.0, 1.0, members.size()};
        const Status status =
            all_reduce(ContextOf(transport, members, 0), reduction, {{input.data(), bytes}}, {{output.data(), bytes}});
        ASSERT_TRUE(status.ok()) << status.message();
      });
      for (int rank = 1; rank < size(); ++rank) {
        EXPECT_TRUE(results[static_cast<size_t>(rank)] == results[0]) << DtypeName(dtype) << " rank " << rank;
      }
    }
  }
}

// Ragged parts: member i has (i * step) % 5 rows of `row` bytes; some are empty.
std::vector<size_t> RaggedOffsets(int size, size_t row, size_t step) {
  std::vector<size_t> offsets{0};
  for (int i = 0; i < size; ++i) offsets.push_back(offsets.back() + (static_cast<size_t>(i) * step) % 5 * row);
  return offsets;
}

using ReduceScatterFunction = Status (*)(const TransportContext&, const Reduction&, const ConstSpans&,
                                         const std::vector<size_t>&, const MutableSpans&);

class ReduceScatters : public Matrix {
 protected:
  // Calls body(function, context of one operation) for each of them.
  void RunEach(const std::function<void(ReduceScatterFunction, Transport&, const Members&)>& body) {
    for (ReduceScatterFunction function :
         {ReduceScatterFunction{RingReduceScatter}, ReduceScatterFunction{DirectReduceScatter}})
      Run([&](Transport& transport, const Members& members) { body(function, transport, members); });
  }
};

TEST_P(ReduceScatters, GiveEachRankItsShare) {
  RunEach([](ReduceScatterFunction reduce_scatter, Transport& transport, const Members& members) {
    uint64_t sequence = 0;
    for (Dtype dtype : AllDtypes()) {
      for (size_t rows : {size_t{0}, size_t{1}, size_t{37}, size_t{150001}}) {
        for (size_t step : {size_t{1}, size_t{3}, size_t{5}}) {
          if (rows > 1000 && dtype != Dtype::kFloat32) continue;
          const Op op = dtype == Dtype::kBool ? Op::kMax : Op::kSum;
          const size_t element = DtypeSize(dtype);
          const std::vector<size_t> offsets = RaggedOffsets(members.size(), rows * element, step);
          const size_t begin = offsets[static_cast<size_t>(members.index)],
                       end = offsets[static_cast<size_t>(members.index) + 1];
          Bytes input = InputBytes(dtype, op, members.size(), members.index, offsets.back() / element);
          const Bytes expected = ExpectedBytes(dtype, op, members.size(), offsets.back() / element);
          Bytes output(end - begin);
          const bool in_place = sequence % 2 == 1;
          const MutableSpans to = in_place ? MutableSpans{{input.data() + begin, end - begin}}
                                           : CutUp(output.data(), output.size(), element, sequence % 3);
          const Status status =
              reduce_scatter(ContextOf(transport, members, sequence), ReductionOf(dtype, op, members.size()),
                             AsConst(CutUp(input.data(), input.size(), element, sequence % 4)), offsets, to);
          ASSERT_TRUE(status.ok()) << status.message();
          const std::byte* result = in_place ? input.data() + begin : output.data();
          ASSERT_TRUE(std::equal(result, result + (end - begin), expected.data() + begin))
              << DtypeName(dtype) << " rows " << rows;
          ++sequence;
        }
      }
    }
  });
}

TEST_P(ReduceScatters, Scale) {
  RunEach([](ReduceScatterFunction reduce_scatter, Transport& transport, const Members& members) {
    uint64_t sequence = 0;
    for (size_t count : {size_t{3}, size_t{1000}, size_t{1300003}}) {
      const Reduction reduction{Dtype::kFloat32, Op::kSum, 2.0, 0.5, members.size()};
      const std::vector<size_t> offsets = EvenOffsets(count * 4, 4, members.size());
      const size_t begin = offsets[static_cast<size_t>(members.index)],
                   end = offsets[static_cast<size_t>(members.index) + 1];
      const Bytes input = InputBytes(Dtype::kFloat32, Op::kAverage, members.size(), members.index, count);
      const Bytes expected = ExpectedBytes(Dtype::kFloat32, Op::kAverage, members.size(), count);
      Bytes output(end - begin);
      const Status status = reduce_scatter(ContextOf(transport, members, sequence++), reduction,
                                           {{input.data(), input.size()}}, offsets, {{output.data(), output.size()}});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(std::equal(output.begin(), output.end(), expected.data() + begin)) << count;
    }
  });
}

Bytes Pattern(int rank, size_t bytes) {
  Bytes pattern(bytes);
  for (size_t i = 0; i < bytes; ++i)
    pattern[i] = static_cast<std::byte>(static_cast<size_t>(rank) * 37 + i * 11 + i / 251);
  return pattern;
}

TEST_P(Matrix, RingAllGather) {
  Run([](Transport& transport, const Members& members) {
    uint64_t sequence = 0;
    for (size_t row : {size_t{0}, size_t{1}, size_t{13}, size_t{4096}, size_t{600007}}) {
      for (size_t step : {size_t{1}, size_t{3}, size_t{5}}) {
        for (bool in_place : {false, true}) {
          const std::vector<size_t> offsets = RaggedOffsets(members.size(), row, step);
          Bytes expected;
          for (int rank = 0; rank < members.size(); ++rank) {
            const size_t bytes = offsets[static_cast<size_t>(rank) + 1] - offsets[static_cast<size_t>(rank)];
            const Bytes part = Pattern(rank, bytes);
            expected.insert(expected.end(), part.begin(), part.end());
          }
          const size_t begin = offsets[static_cast<size_t>(members.index)],
                       end = offsets[static_cast<size_t>(members.index) + 1];
          Bytes own = Pattern(members.index, end - begin), output(offsets.back());
          if (in_place) std::copy(own.begin(), own.end(), output.begin() + static_cast<std::ptrdiff_t>(begin));
          const ConstSpans from = in_place ? ConstSpans{{output.data() + begin, end - begin}}
                                           : AsConst(CutUp(own.data(), own.size(), 1, sequence % 3));
          const Status status = RingAllGather(ContextOf(transport, members, sequence), from, offsets,
                                              CutUp(output.data(), output.size(), 1, sequence % 4));
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_TRUE(output == expected) << "row " << row << " step " << step;
          ++sequence;
        }
      }
    }
  });
}

TEST_P(Matrix, BroadcastFromEveryRoot) {
  Run([](Transport& transport, const Members& members) {
    uint64_t sequence = 0;
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{1001}, size_t{300000}, size_t{3000001}}) {
      for (int root = 0; root < members.size(); ++root) {
        const bool in_place = sequence % 2 == 1;
        Bytes input = Pattern(members.index, bytes), output(bytes);
        Bytes& result = in_place ? input : output;
        const Status status = BroadcastFrom(ContextOf(transport, members, sequence), root,
                                            AsConst(CutUp(input.data(), bytes, 1, sequence % 4)),
                                            CutUp(result.data(), bytes, 1, sequence % 3));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(result == Pattern(root, bytes)) << bytes << " bytes from " << root;
        ++sequence;
      }
    }
  });
}

// What `from` sends to `to`: (from + 2 to + 1) % 4 rows.
size_t Rows(int from, int to) { return static_cast<size_t>((from + 2 * to + 1) % 4); }

TEST_P(Matrix, AllToAllWithSplits) {
  Run([](Transport& transport, const Members& members) {
    uint64_t sequence = 0;
    for (size_t row : {size_t{0}, size_t{1}, size_t{24}, size_t{100003}}) {
      std::vector<size_t> sends{0}, receives{0};
      Bytes input, expected;
      for (int peer = 0; peer < members.size(); ++peer) {
        const Bytes out = Pattern(members.index * 10 + peer, Rows(members.index, peer) * row);
        const Bytes in = Pattern(peer * 10 + members.index, Rows(peer, members.index) * row);
        input.insert(input.end(), out.begin(), out.end());
        expected.insert(expected.end(), in.begin(), in.end());
        sends.push_back(input.size());
        receives.push_back(expected.size());
      }
      Bytes output(expected.size());
      const Status status =
          AllToAll(ContextOf(transport, members, sequence), AsConst(CutUp(input.data(), input.size(), 1, sequence)),
                   sends, CutUp(output.data(), output.size(), 1, sequence), receives);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(output == expected) << "row " << row;
      ++sequence;
    }
  });
}

TEST_P(Matrix, AllToAllInPlace) {
  Run([](Transport& transport, const Members& members) {
    const std::vector<size_t> offsets = EvenOffsets(1000 * static_cast<size_t>(members.size()), 1, members.size());
    Bytes data, expected;
    for (int peer = 0; peer < members.size(); ++peer) {
      const Bytes out = Pattern(members.index * 10 + peer, 1000), in = Pattern(peer * 10 + members.index, 1000);
      data.insert(data.end(), out.begin(), out.end());
      expected.insert(expected.end(), in.begin(), in.end());
    }
    const Status status = AllToAll(ContextOf(transport, members, 0), {{data.data(), data.size()}}, offsets,
                                   {{data.data(), data.size()}}, offsets);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(data == expected);
  });
}

TEST_P(Matrix, BarrierHoldsEverybodyBack) {
  std::atomic<int> arrived{0};
  Run([&](Transport& transport, const Members& members) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      const Status status = DisseminationBarrier(ContextOf(transport, members, static_cast<uint64_t>(round)));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_GE(arrived.load(), round * members.size());
    }
  });
}

// Ranks 1 and 3 of a bigger world, in that order reversed: the members need not be everybody.
TEST(Members, WorkInsideABiggerWorld) {
  OnEveryTransport(4, 0, [](Transport& transport) {
    if (transport.rank() % 2 == 0) return;
    const Members members{{3, 1}, transport.rank() == 3 ? 0 : 1};
    uint64_t sequence = 0;
    for (AllReduceFunction all_reduce :
         {AllReduceFunction{RingAllReduce}, AllReduceFunction{RecursiveDoublingAllReduce},
          AllReduceFunction{HalvingDoublingAllReduce}}) {
      float value = static_cast<float>(transport.rank());
      const auto bytes = reinterpret_cast<std::byte*>(&value);
      const Status status = all_reduce(ContextOf(transport, members, sequence++),
                                       ReductionOf(Dtype::kFloat32, Op::kSum, 2), {{bytes, 4}}, {{bytes, 4}});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(value, 4.0f);
    }
  });
}

const auto kWorlds = ::testing::Values(World{1, 0}, World{2, 0}, World{2, 4096}, World{3, 0}, World{4, 0},
                                       World{4, 1 << 20}, World{5, 0}, World{6, 0}, World{7, 4096}, World{8, 4096});

std::string NameOf(const ::testing::TestParamInfo<World>& info) {
  return "size" + std::to_string(info.param.size) + "eager" + std::to_string(info.param.eager_bytes);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Matrix, kWorlds, NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, ReduceScatters, kWorlds, NameOf);

}  // namespace
}  // namespace tfc
