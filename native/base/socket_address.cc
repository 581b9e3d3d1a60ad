#include "base/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace tfc {
namespace {

Status Invalid(const std::string& text, const std::string& why) {
  return Status(Code::kInvalidArgument, "'" + text + "' is no address: " + why);
}

Result<uint16_t> ParsePort(const std::string& text, const std::string& digits) {
  uint16_t port = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc() || stop != end) return Invalid(text, "its port is not a number from 0 to 65535");
  return port;
}

}  // namespace

Result<SocketAddress> SocketAddress::FromHost(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0 || host.empty()) {
    if (error == 0) ::freeaddrinfo(found);
    return Invalid(host, "it must be a numeric IPv4 or IPv6 address");
  }
  Result<SocketAddress> address = FromRaw(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

Result<SocketAddress> SocketAddress::Parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return Invalid(text, "it must be host:port");
  const Result<uint16_t> port = ParsePort(text, text.substr(colon + 1));
  if (!port.ok()) return port.status();
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find(':') != std::string::npos) return Invalid(text, "an IPv6 host must be in brackets");
  return FromHost(host, port.value());
}

Result<SocketAddress> SocketAddress::FromRaw(const sockaddr* raw, socklen_t size) {
  const bool known = (raw->sa_family == AF_INET && size >= sizeof(sockaddr_in)) ||
                     (raw->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6));
  if (!known || size > sizeof(sockaddr_storage)) {
    return Status(Code::kInvalidArgument, "an address of family " + std::to_string(raw->sa_family) + " is not IP");
  }
  SocketAddress address;
  std::memcpy(&address.storage_, raw, size);
  address.size_ = size;
  return address;
}

Result<SocketAddress> SocketAddress::LocalOf(int fd) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return Status::FromErrno("getsockname", errno);
  }
  return FromRaw(reinterpret_cast<const sockaddr*>(&storage), size);
}

uint16_t SocketAddress::port() const {
  if (!valid()) return 0;
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  if (!valid() || ::getnameinfo(raw(), size_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "unknown";
  return text;
}

std::string SocketAddress::ToString() const {
  const std::string text = host();
  const std::string port_text = std::to_string(port());
  return family() == AF_INET6 ? "[" + text + "]:" + port_text : text + ":" + port_text;
}

}  // namespace tfc
