// A transport between threads of one process, for tests: the ranks of a hub.
#ifndef TFCOLLECTIVE_TESTING_MEMORY_TRANSPORT_H_
#define TFCOLLECTIVE_TESTING_MEMORY_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/transport/transport.h"

namespace tfc {

struct MemoryHubOptions {
  int size = 1;
  // A message up to this size is copied when it is posted and the send is done; a larger one is done
  // when the receiver has it. 0 shows every algorithm that relies on buffered sends.
  size_t eager_bytes = 4096;
};

// Makes the transports of all ranks and keeps what they share. Transports may outlive the hub.
class MemoryHub {
 public:
  explicit MemoryHub(const MemoryHubOptions& options);
  explicit MemoryHub(int size) : MemoryHub(MemoryHubOptions{size, 4096}) {}
  ~MemoryHub();
  MemoryHub(const MemoryHub&) = delete;
  MemoryHub& operator=(const MemoryHub&) = delete;

  // At most one for each rank. Destroying it closes the rank. Each is driven by one thread.
  std::unique_ptr<Transport> MakeTransport(int rank);
  std::vector<std::unique_ptr<Transport>> MakeAll();

  // As if the rank's process had ended: the others get PEER_LOST. Any thread.
  void Close(int rank);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_MEMORY_TRANSPORT_H_
