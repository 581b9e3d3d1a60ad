// Connections of peers that have no job key, for tests of what they can do to those that have it.
#ifndef TFCOLLECTIVE_TESTING_CROWD_H_
#define TFCOLLECTIVE_TESTING_CROWD_H_

#include <sys/resource.h>
#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/socket_address.h"
#include "base/unique_fd.h"
#include "collectives/transport/tcp/handshake_frames.h"

namespace tfc {

// Lets this process have `count` descriptors, if the hard limit does.
inline bool AllowDescriptors(rlim_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < count) return false;
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = count;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// `size` open connections to `to`, which say by turns: nothing, garbage, half a HELLO, a whole HELLO (which needs no
// key) and nothing more.
class Crowd {
 public:
  Crowd(const SocketAddress& to, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!fd.valid()) return;
      // On the loopback interface it is connected at once, unless the listener's queue is full: then it is silent.
      (void)::connect(fd.get(), to.raw(), to.raw_size());
      const std::string text = WhatOneSays(i);
      (void)::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      connections_.push_back(std::move(fd));
    }
  }
  size_t size() const { return connections_.size(); }

 private:
  static std::string WhatOneSays(size_t number) {
    namespace hs = handshake_internal;
    hs::Buffer hello;
    hs::Encode(hs::Kind::kHello, hs::HelloBody{}, &hello);
    const std::string frame(reinterpret_cast<const char*>(hello.bytes.data()), hello.size);
    switch (number % 4) {
      case 0:
        return "";
      case 1:
        return "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
      case 2:
        return frame.substr(0, frame.size() / 2);
      default:
        return frame;
    }
  }

  std::vector<UniqueFd> connections_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_CROWD_H_
