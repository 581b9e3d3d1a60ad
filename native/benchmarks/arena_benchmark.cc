// How fast the arena's all-reduce is: float32 sum between forked processes.
//
//   arena_benchmark [ranks [spin_us [pin [least_bytes [most_bytes]]]]]
//
// Inputs are rewritten before every repetition (a buffer that lies in the cache unchanged is faster
// than any real one), results are checked after it. Prints the median and the 10th and 90th
// percentile of rank 0's times.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/shm/arena.h"

namespace tfc {
namespace {

struct Options {
  int ranks = 2;
  int spin_us = 1000;
  bool pin = true;
  size_t least_bytes = 4;
  size_t most_bytes = size_t{64} << 20;
};

Options Parse(int argc, char** argv) {
  Options options;
  if (argc > 1) options.ranks = std::atoi(argv[1]);
  if (argc > 2) options.spin_us = std::atoi(argv[2]);
  if (argc > 3) options.pin = std::atoi(argv[3]) != 0;
  if (argc > 4) options.least_bytes = std::strtoull(argv[4], nullptr, 10);
  if (argc > 5) options.most_bytes = std::strtoull(argv[5], nullptr, 10);
  return options;
}

void PinTo(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(rank) % std::thread::hardware_concurrency(), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

[[noreturn]] void Fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(std::string(CodeName(static_cast<int>(status.code()))) + ": " + status.message());
}

using Floats = std::unique_ptr<float[], decltype(&std::free)>;

Floats MakeFloats(size_t count) {
  const size_t bytes = (count * sizeof(float) + 4095) / 4096 * 4096;
  Floats floats(static_cast<float*>(std::aligned_alloc(4096, bytes)), &std::free);
  std::fill_n(floats.get(), count, 0.0f);
  return floats;
}

class Rank {
 public:
  Rank(const Options& options, Arena* arena)
      : options_(options), arena_(*arena), waiter_(arena->MakeWaiter(Arena::Sleeper::kCaller, options.spin_us)) {}

  void MeasureAll() {
    for (size_t bytes = options_.least_bytes; bytes <= options_.most_bytes; bytes *= 4) Measure(bytes);
  }

 private:
  ArenaContext Context() { return ArenaContext{arena_, *waiter_, Deadline::After(60), 0, &round_, sequence_++, 1}; }

  void Measure(size_t bytes) {
    const size_t count = bytes / sizeof(float);
    const int repetitions = bytes > (8u << 20) ? 21 : bytes > (100u << 10) ? 101 : 2001;
    Floats in = MakeFloats(count), out = MakeFloats(count);
    const ConstSpans input = {{reinterpret_cast<const std::byte*>(in.get()), bytes}};
    const MutableSpans output = {{reinterpret_cast<std::byte*>(out.get()), bytes}};
    std::vector<double> times;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const float value = static_cast<float>(arena_.shape().local_rank + repetition);
      std::fill_n(in.get(), count, value);
      Check(ArenaBarrier(Context()));
      const ArenaContext context = Context();
      const auto begin = Deadline::Clock::now();
      Check(ArenaAllReduce(context, Reduction(), input, output));
      times.push_back(std::chrono::duration<double>(Deadline::Clock::now() - begin).count());
      CheckResult(out.get(), count, repetition);
    }
    if (arena_.shape().local_rank == 0) Print(bytes, &times);
  }

  void CheckResult(const float* out, size_t count, int repetition) const {
    const int ranks = options_.ranks;
    const float expected = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * repetition);
    const size_t step = count < 1000 ? 1 : 997;
    for (size_t i = 0; i < count; i += step) {
      if (out[i] != expected) Fail("wrong result at element " + std::to_string(i));
    }
    if (out[count - 1] != expected) Fail("wrong result in the last element");
  }

  void Print(size_t bytes, std::vector<double>* times) const {
    std::sort(times->begin(), times->end());
    const auto percentile = [times](size_t percent) { return (*times)[(times->size() - 1) * percent / 100]; };
    std::printf("ranks %d bytes %9zu median %10.2f us  p10 %10.2f  p90 %10.2f  algbw %6.2f GB/s\n", options_.ranks,
                bytes, percentile(50) * 1e6, percentile(10) * 1e6, percentile(90) * 1e6,
                static_cast<double>(bytes) / percentile(50) / 1e9);
    std::fflush(stdout);
  }

  const Options options_;
  Arena& arena_;
  const std::unique_ptr<Waiter> waiter_;
  uint64_t round_ = 0;
  uint64_t sequence_ = 0;
};

void RunRank(const Options& options, int local_rank, int fd) {
  if (options.pin) PinTo(local_rank);
  Result<std::unique_ptr<Arena>> arena = Arena::Attach(ArenaShape{local_rank, options.ranks, 1}, UniqueFd(dup(fd)));
  Check(arena.status());
  Rank(options, arena.value().get()).MeasureAll();
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  ArenaShape shape{0, options.ranks, 1};
  shape.crowded = static_cast<unsigned>(options.ranks) > std::thread::hardware_concurrency();
  Result<std::unique_ptr<Arena>> arena = Arena::Create(shape);
  Check(arena.status());
  for (int rank = 1; rank < options.ranks; ++rank) {
    if (fork() != 0) continue;
    RunRank(options, rank, arena.value()->fd());
    std::_Exit(0);
  }
  RunRank(options, 0, arena.value()->fd());
  int failed = 0;
  for (int rank = 1; rank < options.ranks; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) failed = 1;
  }
  return failed;
}

}  // namespace
}  // namespace tfc

int main(int argc, char** argv) { return tfc::Main(argc, argv); }
