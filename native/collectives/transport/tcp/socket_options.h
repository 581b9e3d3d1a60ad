// Options that every TCP connection of the library has.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_SOCKET_OPTIONS_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_SOCKET_OPTIONS_H_

#include "base/status.h"

namespace tfc {

// No delay; keepalive such that on an idle connection a host that vanished is noticed within 15 s (5 s + 3 probes of
// 2 s); the owner of a connection with data under way has an AckWatch for that. Forks of this process do not inherit
// it, so that the peer notices the end of this process. `fd` must be held by a UniqueFd.
Status ConfigureConnection(int fd);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_SOCKET_OPTIONS_H_
