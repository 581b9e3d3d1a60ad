// A numeric IPv4 or IPv6 address with a port, as text and as what the kernel wants.
#ifndef TFCOLLECTIVE_BASE_SOCKET_ADDRESS_H_
#define TFCOLLECTIVE_BASE_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tfc {

class SocketAddress {
 public:
  SocketAddress() = default;  // not valid

  // Numeric only, never asks a name service: "10.0.0.7", "::1", "fe80::1%eth0".
  static Result<SocketAddress> FromHost(const std::string& host, uint16_t port);
  // "10.0.0.7:3412" or "[::1]:3412".
  static Result<SocketAddress> Parse(const std::string& text);
  // Converts the result of getsockname, getpeername or accept.
  static Result<SocketAddress> FromRaw(const sockaddr* raw, socklen_t size);
  static Result<SocketAddress> LocalOf(int fd);

  bool valid() const { return size_ != 0; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  std::string host() const;
  std::string ToString() const;  // the form that Parse accepts

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t raw_size() const { return size_; }

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_SOCKET_ADDRESS_H_
