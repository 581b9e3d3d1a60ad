#include "base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tfc {
namespace {

constexpr int kBits = 64;
constexpr int kMaxFds = 65536;

// One bit a descriptor. Process-wide as descriptors are; without locks, because a fork may happen
// while another thread is anywhere.
std::array<std::atomic<uint64_t>, kMaxFds / kBits> g_guarded{};

uint64_t BitOf(int fd) { return uint64_t{1} << (fd % kBits); }
std::atomic<uint64_t>& WordOf(int fd) { return g_guarded[static_cast<size_t>(fd / kBits)]; }

void CloseAllInChild() {
  for (size_t word = 0; word < g_guarded.size(); ++word) {
    const uint64_t bits = g_guarded[word].exchange(0);
    for (int bit = 0; bits != 0 && bit < kBits; ++bit)
      if ((bits >> bit & 1) != 0) ::close(static_cast<int>(word) * kBits + bit);
  }
}

}  // namespace

void CloseInForks(int fd) {
  // The only failure is a lack of memory: then forks are as they are without us.
  static const int registered = ::pthread_atfork(nullptr, nullptr, &CloseAllInChild);
  if (registered == 0 && fd >= 0 && fd < kMaxFds) WordOf(fd).fetch_or(BitOf(fd));
}

void KeepInForks(int fd) {
  if (fd >= 0 && fd < kMaxFds && (WordOf(fd).load(std::memory_order_relaxed) & BitOf(fd)) != 0)
    WordOf(fd).fetch_and(~BitOf(fd));
}

}  // namespace tfc
