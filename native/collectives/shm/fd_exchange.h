// Hands file descriptors to the other ranks of the node over an abstract Unix socket: nothing in
// the file system, and only for processes of the same user that prove the job key.
#ifndef TFCOLLECTIVE_COLLECTIVES_SHM_FD_EXCHANGE_H_
#define TFCOLLECTIVE_COLLECTIVES_SHM_FD_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tfc {

using ExchangeKey = std::vector<uint8_t>;  // the job key

class FdServer {
 public:
  // Listens under a fresh random name.
  static Result<FdServer> Create();

  // The name that the peers connect to, as text.
  const std::string& name() const { return name_; }

  // Gives `fds` to `clients` peers and returns when all have them. A client that fails to prove `key`
  // is turned away and does not count. Ends with CANCELLED when `cancel_fd` becomes readable.
  Status Serve(const std::vector<int>& fds, int clients, const ExchangeKey& key, int cancel_fd, Deadline deadline);

 private:
  FdServer(UniqueFd socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)) {}
  UniqueFd socket_;
  std::string name_;
};

// Fetches the descriptors from the server of that name, which must send `count` of them.
Result<std::vector<UniqueFd>> FetchFds(const std::string& name, size_t count, const ExchangeKey& key, int cancel_fd,
                                       Deadline deadline);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_SHM_FD_EXCHANGE_H_
