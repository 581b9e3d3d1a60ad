// Runs one function on every rank of a world of threads over the memory transport.
#ifndef TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_WORLDS_H_
#define TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_WORLDS_H_

#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "collectives/algorithms/context.h"
#include "testing/memory_transport.h"

namespace tfc {

inline Members AllMembers(int size, int rank) {
  Members members;
  members.ranks.resize(static_cast<size_t>(size));
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  members.index = rank;
  return members;
}

inline void OnEveryRank(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// `eager_bytes` 0: no send is done before it is received.
inline void OnEveryTransport(int size, size_t eager_bytes, const std::function<void(Transport&)>& body) {
  MemoryHub hub(MemoryHubOptions{size, eager_bytes});
  std::vector<std::unique_ptr<Transport>> transports = hub.MakeAll();
  OnEveryRank(size, [&](int rank) { body(*transports[static_cast<size_t>(rank)]); });
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_WORLDS_H_
