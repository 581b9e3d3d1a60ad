// For tests in a network namespace of their own: its loopback interface, up or down.
#ifndef TFCOLLECTIVE_TESTING_OWN_NETWORK_H_
#define TFCOLLECTIVE_TESTING_OWN_NETWORK_H_

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>

#include "base/unique_fd.h"

namespace tfc {

// Sets loopback of the calling thread's network namespace up or down. Returns false without permission.
inline bool SetLoopback(bool up) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  return ::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_OWN_NETWORK_H_
