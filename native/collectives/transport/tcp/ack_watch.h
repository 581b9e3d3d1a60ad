// Watches whether the host at the other end of a connection still acknowledges data.
//
// A peer is gone when its host is silent, never because its process is slow. TCP_USER_TIMEOUT cannot tell the two
// apart: it also ends a connection whose window is full, although the peer's kernel answers each probe. Keepalive can,
// but it rests while there is something to send. So keepalive covers idle connections, and this class the others.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ACK_WATCH_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ACK_WATCH_H_

#include <cstdint>
#include <string>

namespace tfc {

class AckWatch {
 public:
  // How far apart the looks should be, and how many of them in a row must find the peer's host silent. Counted in
  // looks: a process that was stopped for a minute has not looked, and the silence it finds when it goes on is its own.
  static constexpr double kSeconds = 1.0;
  static constexpr int kLooks = 10;

  // The state of a connection, as the kernel reports it.
  struct Facts {
    uint32_t unacked = 0;           // segments under way
    uint32_t window = 0;            // bytes that the peer has room for
    uint32_t probes = 0;            // of a full window, or of keepalive, in a row without an answer
    uint32_t unsent = 0;            // bytes that the peer's host has not acknowledged, sent or not
    uint32_t heard_millis_ago = 0;  // an acknowledgement or data
  };

  enum class State {
    kQuiet,    // the peer has everything: no need to look again until something is sent
    kWaiting,  // look again
    kSilent    // the peer's host is gone, or nothing gets through to it
  };

  // One look at the connection, `seconds` after the last one or later.
  State Look(int fd, double seconds = kSeconds);
  State Judge(const Facts& facts, double seconds);

  // Words for kSilent.
  static std::string Explain();

 private:
  int silent_looks_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_ACK_WATCH_H_
