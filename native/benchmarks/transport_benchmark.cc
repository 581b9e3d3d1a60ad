// Latency and bandwidth of the TCP transport between two threads over the loopback interface.
// Usage: transport_benchmark [spin_us]

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "testing/tcp_world.h"

namespace tfc {
namespace {

using Bytes = std::vector<std::byte>;

Deadline Soon() { return Deadline::After(60); }

double SecondsSince(Deadline::Clock::time_point begin) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
}

void CheckOk(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// Time of one round trip / 2, in seconds.
double PingPong(Transport& transport, uint64_t sequence, size_t size, uint32_t rounds) {
  const int peer = 1 - transport.rank();
  Bytes out(size);
  Bytes in(size);
  const auto begin = Deadline::Clock::now();
  for (uint32_t step = 0; step < rounds; ++step) {
    const Tag tag{0, step, sequence, 0};
    const Ticket receive = TakeOrDie(transport.PostReceive(peer, tag, {MutableSpan{in.data(), size}}));
    if (transport.rank() == 1) CheckOk(transport.Wait(receive, Soon()));
    const Ticket send = TakeOrDie(transport.PostSend(peer, tag, {ConstSpan{out.data(), size}}));
    CheckOk(transport.Wait(send, Soon()));
    if (transport.rank() == 0) CheckOk(transport.Wait(receive, Soon()));
  }
  return SecondsSince(begin) / rounds / 2;
}

// Both ranks send `size` bytes to each other in segments, four of each direction under way, as a
// step of a ring does. Bytes per second in each direction.
double Exchange(Transport& transport, uint64_t sequence, size_t size, size_t segment) {
  const int peer = 1 - transport.rank();
  Bytes out(size, std::byte{1});
  Bytes in(size, std::byte{2});
  const size_t count = size / segment;
  constexpr size_t kWindow = 4;
  std::vector<Ticket> sends(count);
  std::vector<Ticket> receives(count);
  const auto begin = Deadline::Clock::now();
  for (size_t i = 0; i < count + kWindow; ++i) {
    const Tag tag{0, static_cast<uint32_t>(i), sequence, 0};
    if (i < count) {
      receives[i] = TakeOrDie(transport.PostReceive(peer, tag, {MutableSpan{in.data() + i * segment, segment}}));
      sends[i] = TakeOrDie(transport.PostSend(peer, tag, {ConstSpan{out.data() + i * segment, segment}}));
    }
    if (i < kWindow) continue;
    CheckOk(transport.Wait(receives[i - kWindow], Soon()));
    CheckOk(transport.Wait(sends[i - kWindow], Soon()));
  }
  return static_cast<double>(size) / SecondsSince(begin);
}

// One rank sends, the other receives. Bytes per second.
double OneWay(Transport& transport, uint64_t sequence, size_t size, size_t segment) {
  Bytes bytes(size, std::byte{1});
  std::vector<Ticket> tickets;
  const auto begin = Deadline::Clock::now();
  for (size_t i = 0; i < size / segment; ++i) {
    const Tag tag{0, static_cast<uint32_t>(i), sequence, 0};
    std::byte* at = bytes.data() + i * segment;
    tickets.push_back(TakeOrDie(transport.rank() == 0 ? transport.PostSend(1, tag, {ConstSpan{at, segment}})
                                                      : transport.PostReceive(0, tag, {MutableSpan{at, segment}})));
  }
  for (const Ticket ticket : tickets) CheckOk(transport.Wait(ticket, Soon()));
  return static_cast<double>(size) / SecondsSince(begin);
}

void Run(int spin_us) {
  TcpWorldOptions options;
  options.spin_us = spin_us;
  TcpWorld world(2, options);
  world.RunAll([](Transport& transport) {
    const bool speaks = transport.rank() == 0;
    PingPong(transport, 0, 8, 1000);  // warm-up
    for (const size_t size : {size_t{8}, size_t{1024}, size_t{65536}}) {
      const double seconds = PingPong(transport, 1 + size, size, 5000);
      if (speaks) std::printf("ping-pong %7zu B: %8.2f us one way\n", size, seconds * 1e6);
    }
    for (uint64_t round = 0; round < 4; ++round) {
      const double both = Exchange(transport, 100000 + round, size_t{64} << 20, size_t{256} << 10);
      const double one = OneWay(transport, 200000 + round, size_t{64} << 20, size_t{256} << 10);
      if (speaks)
        std::printf("64 MiB in 256 KiB: exchange %.2f GB/s each way, one way %.2f GB/s\n", both / 1e9, one / 1e9);
    }
  });
}

}  // namespace
}  // namespace tfc

int main(int argc, char** argv) {
  tfc::Run(argc > 1 ? std::atoi(argv[1]) : 0);
  return 0;
}
