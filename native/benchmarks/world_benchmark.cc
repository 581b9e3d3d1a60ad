// All-reduce through the C interface between real processes: latency and bandwidth by size.
//
//   world_benchmark RANKS [auto|tcp] [REPETITIONS]
//
// Inputs are rewritten before every repetition and results are checked. Figures are rank 0's
// medians; algbw is bytes per second as the caller sees them, busbw algbw x 2(p-1)/p.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tfcollective/tfcollective.h"

namespace {

constexpr int kMaxRanks = 64;
constexpr uint8_t kKey[32] = {1, 2, 3};

struct Shared {
  char addresses[kMaxRanks][512];
  std::atomic<int> listening;
};

using Clock = std::chrono::steady_clock;

void Die(const char* what, const tfc_error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.message);
  std::exit(1);
}

tfc_communicator* Connect(Shared* shared, int rank, int size, int transport) {
  tfc_error error{};
  error.struct_size = sizeof(error);
  tfc_listener_options listen{sizeof(tfc_listener_options), "127.0.0.1", "node", 0, 0};
  tfc_listener* listener = nullptr;
  if (tfc_listener_create(&listen, &listener, &error) != TFC_OK) Die("listen", error);
  tfc_listener_address(listener, shared->addresses[rank], sizeof(shared->addresses[rank]), nullptr);
  shared->listening.fetch_add(1);
  while (shared->listening.load() < size) usleep(100);  // the parent has no other way to tell its children
  const char* addresses[kMaxRanks];
  for (int r = 0; r < size; ++r) addresses[r] = shared->addresses[r];
  tfc_communicator_options options{};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.addresses = addresses;
  options.key = kKey;
  options.key_size = sizeof(kKey);
  options.transport = transport;
  options.spin_us = -1;
  tfc_communicator* communicator = nullptr;
  if (tfc_communicator_create(listener, &options, &communicator, &error) != TFC_OK) Die("connect", error);
  return communicator;
}

void Run(tfc_communicator* communicator, int rank, int size, size_t bytes, int repetitions) {
  const size_t count = bytes / sizeof(float);
  std::vector<float> input(count), output(count);
  const tfc_span span{input.data(), output.data(), static_cast<int64_t>(count)};
  tfc_request request{};
  request.struct_size = sizeof(request);
  request.collective = TFC_ALLREDUCE;
  request.dtype = TFC_FLOAT32;
  request.op = TFC_SUM;
  request.prescale = request.postscale = 1;
  request.name = "";
  request.spans = &span;
  request.num_spans = 1;
  tfc_request barrier = request;
  barrier.collective = TFC_BARRIER;
  barrier.num_spans = 0;
  tfc_error error{};
  error.struct_size = sizeof(error);
  std::vector<double> micros;
  for (int i = 0; i < repetitions; ++i) {
    std::fill(input.begin(), input.end(), static_cast<float>(rank + i % 7));
    if (tfc_run(communicator, &barrier, &error) != TFC_OK) Die("barrier", error);
    const auto begin = Clock::now();
    if (tfc_run(communicator, &request, &error) != TFC_OK) Die("allreduce", error);
    micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    const float expected = static_cast<float>(size * (size - 1) / 2 + size * (i % 7));
    if (output.front() != expected || output.back() != expected) {
      std::fprintf(stderr, "wrong result: %g, not %g\n", static_cast<double>(output.front()),
                   static_cast<double>(expected));
      std::exit(1);
    }
  }
  if (rank != 0) return;
  std::sort(micros.begin(), micros.end());
  const double median = micros[micros.size() / 2];
  const double algbw = static_cast<double>(bytes) / median / 1e3;
  std::printf("%12zu %12.2f %12.2f %12.2f %10.2f %10.2f\n", bytes, micros.front(), median,
              micros[micros.size() * 9 / 10], algbw, algbw * 2 * (size - 1) / size);
  std::fflush(stdout);
}

int RankMain(Shared* shared, int rank, int size, int transport, int repetitions) {
  tfc_communicator* communicator = Connect(shared, rank, size, transport);
  if (rank == 0)
    std::printf("%12s %12s %12s %12s %10s %10s\n", "bytes", "min us", "median us", "p90 us", "algbw GB/s",
                "busbw GB/s");
  for (size_t bytes = 4; bytes <= (size_t{64} << 20); bytes *= 4) {
    const int count = bytes >= (size_t{1} << 20) ? std::max(5, repetitions / 10) : repetitions;
    Run(communicator, rank, size, bytes, count);
  }
  tfc_communicator_shutdown(communicator, 5, nullptr);
  tfc_communicator_release(communicator);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const int transport = argc > 2 && std::strcmp(argv[2], "tcp") == 0 ? TFC_TRANSPORT_TCP : TFC_TRANSPORT_AUTO;
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 300;
  if (size < 1 || size > kMaxRanks || repetitions < 1) {
    std::fprintf(stderr, "usage: world_benchmark RANKS(1..%d) [auto|tcp] [REPETITIONS]\n", kMaxRanks);
    return 64;
  }
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Shared();
  std::vector<pid_t> children;
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) return RankMain(shared, rank, size, transport, repetitions);
    children.push_back(child);
  }
  int result = RankMain(shared, 0, size, transport, repetitions);
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}
