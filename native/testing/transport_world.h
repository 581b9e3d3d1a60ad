// All ranks of a world inside one test process, over any transport.
#ifndef TFCOLLECTIVE_TESTING_TRANSPORT_WORLD_H_
#define TFCOLLECTIVE_TESTING_TRANSPORT_WORLD_H_

#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/transport/transport.h"
#include "testing/memory_transport.h"

namespace tfc {

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  virtual int size() const = 0;
  virtual Transport& At(int rank) = 0;
  // As if the rank's process had ended. No thread may be using its transport.
  virtual void Kill(int rank) = 0;

  // Runs `body(transport)` for every rank on a thread of its own and waits for all.
  template <typename Body>
  void RunAll(const Body& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back([this, rank, &body] { body(At(rank)); });
    for (std::thread& thread : threads) thread.join();
  }
};

class MemoryWorld final : public TransportWorld {
 public:
  explicit MemoryWorld(int size, size_t eager_bytes = 4096)
      : hub_(MemoryHubOptions{size, eager_bytes}), transports_(hub_.MakeAll()) {}

  int size() const override { return static_cast<int>(transports_.size()); }
  Transport& At(int rank) override { return *transports_[static_cast<size_t>(rank)]; }
  void Kill(int rank) override { transports_[static_cast<size_t>(rank)].reset(); }

 private:
  MemoryHub hub_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_TRANSPORT_WORLD_H_
