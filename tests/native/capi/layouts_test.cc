// The same reductions on one host, on two, and on four: every type and operation, against a reference of higher
// precision. What is exact is equal to the bit; the round-off of the rest is the one that docs/concepts.md states.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/reduce/reduce.h"
#include "communicator/operation.h"
#include "testing/world.h"

namespace tfc::testing {
namespace {

constexpr int kRanks = 4;

using Bytes = std::vector<std::byte>;
using Exact = long double;

struct Layout {
  std::string label;
  std::vector<std::string> nodes;
  int32_t transport = TFC_TRANSPORT_AUTO;
};

void PrintTo(const Layout& value, std::ostream* stream) { *stream << value.label; }

// One collective on `spans` pieces of so many elements.
struct Call {
  int32_t collective;
  Dtype dtype;
  int32_t op;
  double prescale;
  double postscale;
  std::vector<int64_t> spans;

  size_t count() const {
    int64_t sum = 0;
    for (const int64_t span : spans) sum += span;
    return static_cast<size_t>(sum);
  }
  bool scales() const { return prescale != 1.0 || postscale != 1.0; }
};

std::string Describe(const Call& call) {
  return std::string(call.collective == TFC_ALLREDUCE ? "allreduce " : "reducescatter ") + DtypeName(call.dtype) + " " +
         OpName(static_cast<Op>(call.op)) + " x" + std::to_string(call.count()) + (call.scales() ? " scaled" : "");
}

Bytes HalvesOf(Dtype dtype, const std::vector<float>& values) {
  Reduction reduction;
  reduction.dtype = dtype;
  Bytes halves(values.size() * sizeof(uint16_t));
  const auto* wide = reinterpret_cast<const std::byte*>(values.data());
  ReduceArrays(reduction.FromWide(), &wide, 1, halves.data(), values.size());
  return halves;
}

std::vector<float> FloatsOf(Dtype dtype, const Bytes& halves) {
  Reduction reduction;
  reduction.dtype = dtype;
  std::vector<float> values(halves.size() / sizeof(uint16_t));
  const std::byte* narrow = halves.data();
  ReduceArrays(reduction.ToWide(), &narrow, 1, reinterpret_cast<std::byte*>(values.data()), values.size());
  return values;
}

template <typename Function>
auto WithType(Dtype dtype, const Function& function) {
  switch (dtype) {
    case Dtype::kFloat64:
      return function(double());
    case Dtype::kInt8:
      return function(int8_t());
    case Dtype::kInt16:
      return function(int16_t());
    case Dtype::kInt32:
      return function(int32_t());
    case Dtype::kInt64:
      return function(int64_t());
    case Dtype::kUint16:
      return function(uint16_t());
    case Dtype::kUint32:
      return function(uint32_t());
    case Dtype::kUint64:
      return function(uint64_t());
    case Dtype::kUint8:
    case Dtype::kBool:
      return function(uint8_t());
    default:
      return function(float());
  }
}

// Floats of several magnitudes and both signs; integers from all over their type, so that their sums wrap.
Bytes InputOf(const Call& call, int rank) {
  const size_t count = call.count();
  uint32_t state = 17u + static_cast<uint32_t>(rank) * 7919u;
  const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
  if (IsHalf(call.dtype) || call.dtype == Dtype::kFloat32 || call.dtype == Dtype::kFloat64) {
    std::vector<float> values(count);
    for (float& value : values) {
      const auto exponent = static_cast<int>(next() % 9) - 4;
      value = std::ldexp(static_cast<float>(next() % 2001) - 1000.0f, exponent - 10);
      if (call.op == TFC_PRODUCT && value == 0) value = 1;
    }
    if (IsHalf(call.dtype)) return HalvesOf(call.dtype, values);
    Bytes bytes(count * DtypeSize(call.dtype));
    WithType(call.dtype, [&](auto type) {
      using T = decltype(type);
      for (size_t i = 0; i < count; ++i) {
        const T value = static_cast<T>(values[i]) * static_cast<T>(1.1);
        std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
      }
    });
    return bytes;
  }
  Bytes bytes(count * DtypeSize(call.dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(call.dtype == Dtype::kBool ? next() % 2 : next());
  return bytes;
}

std::vector<Exact> ExactOf(Dtype dtype, const Bytes& bytes) {
  std::vector<Exact> values;
  if (IsHalf(dtype)) {
    for (const float value : FloatsOf(dtype, bytes)) values.push_back(value);
    return values;
  }
  WithType(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      values.push_back(static_cast<Exact>(value));
    }
  });
  return values;
}

Exact Combine(int32_t op, Exact a, Exact b) {
  if (op == TFC_MIN) return std::min(a, b);
  if (op == TFC_MAX) return std::max(a, b);
  return op == TFC_PRODUCT ? a * b : a + b;
}

// The next integer toward zero, in the type's range. 64 bits of a long double hold all of them.
template <typename T>
Exact Truncated(Exact value) {
  const Exact whole = std::trunc(value);
  return std::clamp(whole, static_cast<Exact>(std::numeric_limits<T>::min()),
                    static_cast<Exact>(std::numeric_limits<T>::max()));
}

// Sums and products of integers wrap; averages are of the exact sum.
template <typename T>
Exact IntegerResult(const Call& call, std::vector<Exact> inputs) {
  const auto scaled = [](Exact value, double factor) {
    return factor == 1.0 ? value : static_cast<Exact>(static_cast<double>(value) * factor);
  };
  for (Exact& input : inputs) input = Truncated<T>(scaled(input, call.prescale));
  __extension__ typedef __int128 Wide;
  auto result = static_cast<Wide>(inputs[0]);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const auto other = static_cast<Wide>(inputs[i]);
    if (call.op == TFC_AVERAGE) {
      result += other;
    } else if (call.op == TFC_SUM || call.op == TFC_PRODUCT) {
      const auto a = static_cast<uint64_t>(result), b = static_cast<uint64_t>(other);
      result = static_cast<Wide>(static_cast<T>(call.op == TFC_SUM ? a + b : a * b));
    } else {
      result = call.op == TFC_MIN ? std::min(result, other) : std::max(result, other);
    }
  }
  if (call.op != TFC_AVERAGE) return Truncated<T>(scaled(static_cast<Exact>(static_cast<T>(result)), call.postscale));
  if (call.postscale != 1.0) result = static_cast<Wide>(static_cast<double>(result) * call.postscale);
  return Truncated<T>(static_cast<Exact>(result / static_cast<Wide>(inputs.size())));
}

struct Reference {
  Exact value;
  Exact error;  // how far a result may be from it
};

// Half a unit in the last place of 1, and of the smallest number.
Exact UnitOf(Dtype dtype) {
  const int bits = dtype == Dtype::kFloat16 ? 11 : dtype == Dtype::kBfloat16 ? 8 : dtype == Dtype::kFloat32 ? 24 : 53;
  return std::ldexp(Exact{1}, -bits);
}
Exact SmallestOf(Dtype dtype) { return dtype == Dtype::kFloat16 ? std::ldexp(Exact{1}, -25) : Exact{0}; }

Reference FloatResult(const Call& call, const std::vector<Exact>& inputs) {
  const auto ranks = static_cast<Exact>(inputs.size());
  const Exact after = static_cast<Exact>(call.postscale) / (call.op == TFC_AVERAGE ? ranks : 1);
  const auto before = static_cast<Exact>(call.prescale);
  Exact value = inputs[0] * before, size = std::abs(value);
  for (size_t i = 1; i < inputs.size(); ++i) {
    value = Combine(call.op, value, inputs[i] * before);
    size = call.op == TFC_PRODUCT ? std::abs(value) : size + std::abs(inputs[i] * before);
  }
  const Exact unit = UnitOf(call.dtype), computed = IsHalf(call.dtype) ? UnitOf(Dtype::kFloat32) : unit;
  const bool exact = !call.scales() && (call.op == TFC_MIN || call.op == TFC_MAX);
  const Exact rounded = IsHalf(call.dtype) ? unit * std::abs(value * after) + SmallestOf(call.dtype) : 0;
  return {value * after, exact ? 0 : rounded + (2 * ranks + 3) * computed * size * std::abs(after) * (1 + unit)};
}

Reference ReferenceOf(const Call& call, const std::vector<Exact>& inputs) {
  if (IsFloating(call.dtype)) return FloatResult(call, inputs);
  if (call.dtype == Dtype::kBool) {
    Exact any = 0, all = 1;
    for (const Exact input : inputs) any = std::max(any, input), all = std::min(all, input);
    return {call.op == TFC_MIN || call.op == TFC_PRODUCT ? all : any, 0};
  }
  return {WithType(call.dtype, [&](auto type) { return IntegerResult<decltype(type)>(call, inputs); }), 0};
}

std::vector<Call> AllCalls() {
  std::vector<Call> calls;
  for (int number = 0; IsDtype(number); ++number) {
    const auto dtype = static_cast<Dtype>(number);
    for (const int32_t op : {TFC_AVERAGE, TFC_SUM, TFC_MIN, TFC_MAX, TFC_PRODUCT}) {
      for (const int32_t collective : {TFC_ALLREDUCE, TFC_REDUCESCATTER}) {
        for (const bool scaled : {false, true}) {
          if (dtype == Dtype::kBool && (scaled || op == TFC_AVERAGE)) continue;
          const double before = scaled ? 0.7 : 1.0, after = scaled ? 1.3 : 1.0;
          calls.push_back({collective, dtype, op, before, after, {5}});
          if (!scaled || collective == TFC_ALLREDUCE) calls.push_back({collective, dtype, op, before, after, {50001}});
          if (collective == TFC_ALLREDUCE) calls.push_back({collective, dtype, op, before, after, {3, 1, 4099, 17}});
        }
      }
    }
  }
  return calls;
}

// This rank's result: all of it, or its rows.
Bytes ResultOf(tfc_communicator* communicator, const Call& call, int rank) {
  Bytes input = InputOf(call, rank), output(input.size());
  std::vector<tfc_span> spans;
  size_t at = 0;
  for (const int64_t count : call.spans) {
    spans.push_back(tfc_span{input.data() + at, output.data() + at, count});
    at += static_cast<size_t>(count) * DtypeSize(call.dtype);
  }
  tfc_request request = MakeRequest(call.collective, static_cast<int32_t>(call.dtype), call.op);
  request.prescale = call.prescale;
  request.postscale = call.postscale;
  request.spans = spans.data();
  request.num_spans = spans.size();
  if (call.collective == TFC_REDUCESCATTER) request.shape = call.spans.data(), request.ndim = 1;
  const CallResult result = RunNow(communicator, request);
  EXPECT_EQ(result.code, TFC_OK) << Describe(call) << ": " << result.message;
  if (call.collective == TFC_REDUCESCATTER) {
    const auto rows = DealRows(call.spans[0], kRanks);
    const auto own = static_cast<size_t>(rows[static_cast<size_t>(rank) + 1] - rows[static_cast<size_t>(rank)]);
    output.resize(own * DtypeSize(call.dtype));
  }
  return output;
}

class LayoutTest : public ::testing::TestWithParam<Layout> {
 protected:
  void EveryRank(const std::function<void(int, tfc_communicator*)>& body) {
    WorldOptions options;
    options.size = kRanks;
    options.nodes = GetParam().nodes;
    options.transport = GetParam().transport;
    options.op_timeout_s = 60;
    options.skip_link_probe.assign(kRanks, 1);  // the same algorithms on every machine
    EXPECT_EQ(RunWorld(options, body), std::vector<int>(kRanks, TFC_OK));
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, LayoutTest,
                         ::testing::Values(Layout{"hosts1x4", {"a", "a", "a", "a"}},
                                           Layout{"hosts2x2", {"a", "a", "b", "b"}},
                                           Layout{"hosts4x1", {"a", "b", "c", "d"}},
                                           Layout{"hosts3and1", {"a", "b", "a", "a"}},
                                           Layout{"tcp", {"a", "a", "a", "a"}, TFC_TRANSPORT_TCP}),
                         [](const auto& info) { return info.param.label; });

TEST_P(LayoutTest, EveryReductionIsTheReferencesUpToItsRoundOff) {
  const std::vector<Call> calls = AllCalls();
  std::vector<std::vector<Bytes>> results(kRanks, std::vector<Bytes>(calls.size()));
  EveryRank([&](int rank, tfc_communicator* communicator) {
    for (size_t i = 0; i < calls.size(); ++i)
      results[static_cast<size_t>(rank)][i] = ResultOf(communicator, calls[i], rank);
  });
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    Bytes whole;
    for (const auto& of_rank : results) {
      if (call.collective == TFC_REDUCESCATTER) whole.insert(whole.end(), of_rank[i].begin(), of_rank[i].end());
      if (call.collective == TFC_ALLREDUCE) ASSERT_TRUE(of_rank[i] == results[0][i]) << Describe(call);
    }
    if (call.collective == TFC_ALLREDUCE) whole = results[0][i];
    std::vector<std::vector<Exact>> inputs;
    for (int rank = 0; rank < kRanks; ++rank) inputs.push_back(ExactOf(call.dtype, InputOf(call, rank)));
    const std::vector<Exact> values = ExactOf(call.dtype, whole);
    ASSERT_EQ(values.size(), call.count()) << Describe(call);
    const size_t step = values.size() < 10000 ? 1 : 37;  // a prime: elements of every share and segment
    for (size_t element = 0; element < values.size(); element += step) {
      std::vector<Exact> of_ranks;
      for (const auto& input : inputs) of_ranks.push_back(input[element]);
      const Reference reference = ReferenceOf(call, of_ranks);
      ASSERT_LE(std::abs(values[element] - reference.value), reference.error)
          << Describe(call) << " [" << element << "] is " << values[element] << ", not " << reference.value;
    }
  }
}

template <typename T>
std::vector<T> Reduced(tfc_communicator* communicator, int32_t dtype, int32_t op, T value, size_t count) {
  std::vector<T> values(count, value);
  const tfc_span span{values.data(), values.data(), static_cast<int64_t>(count)};
  tfc_request request = MakeRequest(TFC_ALLREDUCE, dtype, op);
  request.spans = &span;
  request.num_spans = 1;
  const CallResult result = RunNow(communicator, request);
  EXPECT_EQ(result.code, TFC_OK) << result.message;
  return values;
}

constexpr uint16_t k40000 = 0x78e2, kMinus40000 = 0xf8e2;  // of float16, whose largest number is 65504

TEST_P(LayoutTest, PartialSumsDoNotOverflow) {
  EveryRank([](int rank, tfc_communicator* communicator) {
    for (const size_t count : {size_t{4}, size_t{400000}}) {
      EXPECT_EQ(Reduced(communicator, TFC_FLOAT16, TFC_AVERAGE, k40000, count), std::vector<uint16_t>(count, k40000));
      const uint16_t mine = rank < 2 ? k40000 : kMinus40000;
      EXPECT_EQ(Reduced(communicator, TFC_FLOAT16, TFC_SUM, mine, count), std::vector<uint16_t>(count, 0));
    }
  });
}

TEST_P(LayoutTest, AveragesOfIntegersDoNotWrap) {
  EveryRank([](int rank, tfc_communicator* communicator) {
    for (const size_t count : {size_t{4}, size_t{300000}}) {
      const auto average = [&](int32_t dtype, auto value, auto expected) {
        EXPECT_EQ(Reduced(communicator, dtype, TFC_AVERAGE, value, count),
                  std::vector<decltype(value)>(count, expected));
      };
      average(TFC_UINT8, uint8_t{200}, uint8_t{200});
      average(TFC_INT8, static_cast<int8_t>(-100 - rank), int8_t{-101});  // 101.5 toward zero
      average(TFC_INT32, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min());
      average(TFC_INT64, std::numeric_limits<int64_t>::min() + rank, std::numeric_limits<int64_t>::min() + 2);
      average(TFC_UINT64, std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(rank),
              std::numeric_limits<uint64_t>::max() - 2);
    }
  });
}

}  // namespace
}  // namespace tfc::testing
