// The collectives on stand-in GPUs, with inputs that sum exactly, in worlds of 1 to 4.
#include <cstdint>
#include <numeric>

#include "gpu_world.h"

namespace tfc::testing {
namespace {

class GpuCollectivesTest : public GpuTest {};

template <typename T>
std::vector<T> Values(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>((i + 3 * static_cast<size_t>(rank)) % 11 + 1);
  return values;
}

template <typename T>
std::vector<T> Expected(int op, int size, size_t count) {
  std::vector<T> result = Values<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const auto values = Values<T>(rank, count);
    for (size_t i = 0; i < count; ++i) {
      if (op == TFC_MIN) result[i] = std::min(result[i], values[i]);
      if (op == TFC_MAX) result[i] = std::max(result[i], values[i]);
      if (op == TFC_PRODUCT) result[i] = static_cast<T>(result[i] * values[i]);
      if (op == TFC_SUM || op == TFC_AVERAGE) result[i] = static_cast<T>(result[i] + values[i]);
    }
  }
  if (op == TFC_AVERAGE)
    for (T& value : result) value = static_cast<T>(value / static_cast<T>(size));
  return result;
}

template <typename T>
void CheckAllReduce(const GpuRank& self, int32_t dtype) {
  for (const int op : {TFC_SUM, TFC_AVERAGE, TFC_MIN, TFC_MAX, TFC_PRODUCT}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}}) {
      OnGpu<T> buffer(self.rank, Values<T>(self.rank, count));
      const CallResult result = self.AllReduce(buffer, count, dtype, op);
      if (op == TFC_AVERAGE && std::is_integral_v<T> && sizeof(T) < sizeof(int64_t)) {  // NCCL's sum may wrap
        ASSERT_EQ(result.code, TFC_UNIMPLEMENTED) << result.message;
        continue;
      }
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      ASSERT_EQ(buffer.Get(self.stream), Expected<T>(op, self.size, count)) << op << " " << count;
    }
  }
}

TEST_F(GpuCollectivesTest, AllReduceMatrix) {
  for (int size = 1; size <= 4; ++size) {
    RunGpuWorld(size, [](GpuRank& self) {
      self.device = self.rank;  // memory of no size is nowhere
      CheckAllReduce<float>(self, TFC_FLOAT32);
      CheckAllReduce<double>(self, TFC_FLOAT64);
      CheckAllReduce<int8_t>(self, TFC_INT8);
      CheckAllReduce<int32_t>(self, TFC_INT32);
      CheckAllReduce<int64_t>(self, TFC_INT64);
      CheckAllReduce<uint8_t>(self, TFC_UINT8);
      CheckAllReduce<uint32_t>(self, TFC_UINT32);
      CheckAllReduce<uint64_t>(self, TFC_UINT64);
    });
  }
}

TEST_F(GpuCollectivesTest, SixteenBitTypesAndScales) {
  RunGpuWorld(2, [](GpuRank& self) {
    for (const auto& [dtype, one] : {std::pair{TFC_FLOAT16, 0x3c00}, std::pair{TFC_BFLOAT16, 0x3f80}}) {
      OnGpu<uint16_t> buffer(self.rank, std::vector<uint16_t>(5, static_cast<uint16_t>(one)));
      tfc_request request = MakeRequest(TFC_ALLREDUCE, dtype, TFC_SUM, "half");
      const tfc_span span{buffer.data(), buffer.data(), 5};
      request.spans = &span;
      request.num_spans = 1;
      request.prescale = 0.25;
      request.postscale = 2.0;
      const CallResult result = self.Run(request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      EXPECT_EQ(buffer.Get(self.stream), std::vector<uint16_t>(5, static_cast<uint16_t>(one)));  // 2 * 1/4 * 2
    }
  });
}

TEST_F(GpuCollectivesTest, OneRankScalesEveryElement) {
  RunGpuWorld(1, [](GpuRank& self) {
    for (const tfc_collective collective : {TFC_ALLREDUCE, TFC_REDUCESCATTER}) {
      for (const size_t count : {size_t{1}, size_t{4097}, size_t{65537}, size_t{500000}}) {
        OnGpu<double> input(self.rank, Values<double>(self.rank, count));
        OnGpu<double> output(self.rank, std::vector<double>(count, -1.0));
        tfc_request request = MakeRequest(collective, TFC_FLOAT64, TFC_AVERAGE, "scaled");
        const tfc_span span{input.data(), output.data(), static_cast<int64_t>(count)};
        const auto rows = static_cast<int64_t>(count);
        request.shape = &rows;
        request.ndim = 1;
        request.spans = &span;
        request.num_spans = 1;
        request.prescale = 4.0;
        const CallResult result = self.Run(request);
        ASSERT_EQ(result.code, TFC_OK) << result.message;
        auto expected = Values<double>(self.rank, count);
        for (double& value : expected) value *= 4.0;
        EXPECT_EQ(output.Get(self.stream), expected) << count;
      }
    }
  });
}

TEST_F(GpuCollectivesTest, SeveralTensorsInOneOperation) {
  RunGpuWorld(2, [](GpuRank& self) {
    const std::vector<size_t> counts{3, 100000, 0, 1, 70000, 17};  // large ones go alone, small ones together
    std::vector<std::unique_ptr<OnGpu<float>>> inputs, outputs;
    std::vector<tfc_span> spans;
    for (const size_t count : counts) {
      inputs.push_back(std::make_unique<OnGpu<float>>(self.rank, Values<float>(self.rank, count)));
      outputs.push_back(std::make_unique<OnGpu<float>>(self.rank, count));
      spans.push_back({inputs.back()->data(), outputs.back()->data(), static_cast<int64_t>(count)});
    }
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_AVERAGE, "bucket");
    request.spans = spans.data();
    request.num_spans = spans.size();
    for (int round = 0; round < 3; ++round) {
      const CallResult result = self.Run(request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      for (size_t i = 0; i < counts.size(); ++i)
        EXPECT_EQ(outputs[i]->Get(self.stream), Expected<float>(TFC_AVERAGE, 2, counts[i])) << i;
    }
  });
  // Two large ones and one packed buffer, three times on two ranks.
  EXPECT_EQ(standin_calls("ncclAllReduce"), 3 * 2 * 3);
}

TEST_F(GpuCollectivesTest, BroadcastOfAnyType) {
  for (const int root : {0, 2}) {
    RunGpuWorld(3, [root](GpuRank& self) {
      OnGpu<int16_t> buffer(self.rank, Values<int16_t>(self.rank, 9));
      tfc_request request = MakeRequest(TFC_BROADCAST, TFC_INT16, TFC_SUM, "b");
      const tfc_span span{buffer.data(), buffer.data(), 9};
      request.spans = &span;
      request.num_spans = 1;
      request.root = root;
      const CallResult result = self.Run(request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      EXPECT_EQ(buffer.Get(self.stream), Values<int16_t>(root, 9));
    });
  }
}

TEST_F(GpuCollectivesTest, ReduceScatterDealsRows) {
  for (const int64_t rows : {int64_t{6}, int64_t{7}, int64_t{2}, int64_t{0}}) {
    RunGpuWorld(3, [rows](GpuRank& self) {
      self.device = self.rank;
      const auto count = static_cast<size_t>(rows) * 4;
      OnGpu<float> input(self.rank, Values<float>(self.rank, count));
      const int64_t mine = rows / 3 + (self.rank < rows % 3 ? 1 : 0);
      const int64_t first = self.rank * (rows / 3) + std::min<int64_t>(self.rank, rows % 3);
      OnGpu<float> output(self.rank, static_cast<size_t>(mine) * 4);
      tfc_request request = MakeRequest(TFC_REDUCESCATTER, TFC_FLOAT32, TFC_SUM, "rs");
      const tfc_span span{input.data(), output.data(), static_cast<int64_t>(count)};
      const int64_t shape[] = {rows, 4};
      request.spans = &span;
      request.num_spans = 1;
      request.shape = shape;
      request.ndim = 2;
      const CallResult result = self.Run(request);
      ASSERT_EQ(result.code, TFC_OK) << result.message;
      const auto all = Expected<float>(TFC_SUM, 3, count);
      EXPECT_EQ(output.Get(self.stream), std::vector<float>(all.begin() + first * 4, all.begin() + (first + mine) * 4));
    });
  }
}

struct Allocated {
  int rank = 0;
  size_t row_bytes = 0;
  std::vector<int64_t> rows;
  void* memory = nullptr;
};

void* Allocate(void* user, const int64_t* rows, int32_t size) {
  auto* allocated = static_cast<Allocated*>(user);
  allocated->rows.assign(rows, rows + size);
  const int64_t all = std::accumulate(rows, rows + size, int64_t{0});
  allocated->memory = standin_allocate(allocated->rank, static_cast<size_t>(all) * allocated->row_bytes);
  return allocated->memory;
}

TEST_F(GpuCollectivesTest, AllGatherOfEqualAndOfDifferentRows) {
  for (const bool equal : {true, false}) {
    RunGpuWorld(3, [equal](GpuRank& self) {
      const int64_t rows = equal ? 2 : self.rank;
      OnGpu<int32_t> input(self.rank, std::vector<int32_t>(static_cast<size_t>(rows) * 2, 10 + self.rank));
      Allocated result{self.rank, 8, {}, nullptr};
      tfc_request request = MakeRequest(TFC_ALLGATHER, TFC_INT32, TFC_SUM, "ag");
      const tfc_span span{input.data(), nullptr, rows * 2};
      const int64_t shape[] = {rows, 2};
      request.spans = &span;
      request.num_spans = 1;
      request.shape = shape;
      request.ndim = 2;
      request.allocate = Allocate;
      request.allocate_user = &result;
      const CallResult done = self.Run(request);
      ASSERT_EQ(done.code, TFC_OK) << done.message;
      const std::vector<int64_t> expected_rows = equal ? std::vector<int64_t>{2, 2, 2} : std::vector<int64_t>{0, 1, 2};
      EXPECT_EQ(result.rows, expected_rows);
      std::vector<int32_t> expected;
      for (int rank = 0; rank < 3; ++rank)
        expected.insert(expected.end(), static_cast<size_t>(expected_rows[static_cast<size_t>(rank)]) * 2, 10 + rank);
      standin_synchronize(self.stream);
      const auto* data = static_cast<int32_t*>(result.memory);
      EXPECT_EQ(std::vector<int32_t>(data, data + expected.size()), expected);
      standin_free(result.memory);
    });
  }
}

TEST_F(GpuCollectivesTest, AllToAllWithSplits) {
  RunGpuWorld(3, [](GpuRank& self) {
    // Rank r sends r + s rows to rank s, each row holding 100 r + s.
    std::vector<int64_t> splits;
    std::vector<int64_t> values;
    for (int to = 0; to < 3; ++to) {
      splits.push_back(self.rank + to);
      values.insert(values.end(), static_cast<size_t>(self.rank + to), 100 * self.rank + to);
    }
    OnGpu<int64_t> input(self.rank, values);
    Allocated result{self.rank, 8, {}, nullptr};
    tfc_request request = MakeRequest(TFC_ALLTOALL, TFC_INT64, TFC_SUM, "a2a");
    const tfc_span span{input.data(), nullptr, static_cast<int64_t>(values.size())};
    const int64_t shape[] = {static_cast<int64_t>(values.size())};
    request.spans = &span;
    request.num_spans = 1;
    request.shape = shape;
    request.ndim = 1;
    request.splits = splits.data();
    request.allocate = Allocate;
    request.allocate_user = &result;
    const CallResult done = self.Run(request);
    ASSERT_EQ(done.code, TFC_OK) << done.message;
    std::vector<int64_t> expected;
    for (int from = 0; from < 3; ++from)
      expected.insert(expected.end(), static_cast<size_t>(from + self.rank), 100 * from + self.rank);
    standin_synchronize(self.stream);
    const auto* data = static_cast<int64_t*>(result.memory);
    EXPECT_EQ(std::vector<int64_t>(data, data + expected.size()), expected);
    standin_free(result.memory);
  });
}

TEST_F(GpuCollectivesTest, CallsByNameMayComeInAnyOrder) {
  RunGpuWorld(3, [](GpuRank& self) {
    OnGpu<float> a(self.rank, std::vector<float>(4, 1.0f));
    OnGpu<float> b(self.rank, std::vector<float>(9, 2.0f));
    Launched launched;
    std::vector<uint64_t> tickets;
    if (self.rank == 1) {
      tickets.push_back(SubmitByName(self, "b", b, 9, &launched));
      tickets.push_back(SubmitByName(self, "a", a, 4, &launched));
    } else {
      tickets.push_back(SubmitByName(self, "a", a, 4, &launched));
      tickets.push_back(SubmitByName(self, "b", b, 9, &launched));
    }
    launched.WaitFor(2);
    for (const uint64_t ticket : tickets)
      EXPECT_EQ(tfc_device_join(self.communicator, ticket, self.stream, nullptr), TFC_OK);
    EXPECT_EQ(a.Get(self.stream), std::vector<float>(4, 3.0f));
    EXPECT_EQ(b.Get(self.stream), std::vector<float>(9, 6.0f));
  });
}

TEST_F(GpuCollectivesTest, AMismatchByNameLeavesTheCommunicatorAlive) {
  RunGpuWorld(2, [](GpuRank& self) {
    OnGpu<float> buffer(self.rank, std::vector<float>(8, 1.0f));
    Launched launched;
    SubmitByName(self, "a", buffer, 4 + self.rank, &launched);
    launched.WaitFor(1);
    EXPECT_EQ(launched.codes[0], TFC_MISMATCH);
    const uint64_t ticket = SubmitByName(self, "a", buffer, 8, &launched);
    launched.WaitFor(2);
    EXPECT_EQ(launched.codes[1], TFC_OK);
    EXPECT_EQ(self.Wait(ticket).code, TFC_OK);
    EXPECT_EQ(buffer.Get(), std::vector<float>(8, 2.0f));
  });
}

}  // namespace
}  // namespace tfc::testing
