// Options that every TCP connection of the library has.
#ifndef TFCOLLECTIVE_TRANSPORT_TCP_SOCKET_OPTIONS_H_
#define TFCOLLECTIVE_TRANSPORT_TCP_SOCKET_OPTIONS_H_

#include "base/status.h"

namespace tfc {

// No delay; keepalive and user timeout such that a host that vanished is noticed within 15 s, whether
// the connection is idle (5 s + 3 probes of 2 s) or has data under way (11 s). Forks of this process
// do not inherit it, so that the peer notices the end of this process. `fd` must be held by a UniqueFd.
Status ConfigureConnection(int fd);

}  // namespace tfc

#endif  // TFCOLLECTIVE_TRANSPORT_TCP_SOCKET_OPTIONS_H_
