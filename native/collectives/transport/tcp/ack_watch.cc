#include "collectives/transport/tcp/ack_watch.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

namespace tfc {
namespace {

// tcpi_snd_wnd, which the C library's tcp_info does not have; kernels before 5.4 do not fill it in.
constexpr size_t kWindowAt = 228;
// As many as keepalive sends. One may get lost, or be left unanswered: a host answers probes twice a second at most.
constexpr uint32_t kProbes = 3;

std::optional<AckWatch::Facts> FactsOf(int fd) {
  std::array<std::byte, 256> raw = {};
  socklen_t size = raw.size();
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, raw.data(), &size) != 0) return std::nullopt;
  tcp_info info = {};
  std::memcpy(&info, raw.data(), std::min(sizeof(info), raw.size()));
  AckWatch::Facts facts;
  facts.unacked = info.tcpi_unacked;
  facts.probes = info.tcpi_probes;
  facts.heard_millis_ago = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
  facts.window = 1;
  if (size >= kWindowAt + sizeof(facts.window))
    std::memcpy(&facts.window, raw.data() + kWindowAt, sizeof(facts.window));
  int unsent = 0;
  if (::ioctl(fd, SIOCOUTQ, &unsent) == 0) facts.unsent = static_cast<uint32_t>(unsent);
  return facts;
}

// Whether something was sent that a live host would have answered at once. Segments that lie beyond a window that has
// shrunk to nothing are repeated ever more rarely, and do not count.
bool AwaitsAnswer(const AckWatch::Facts& facts) {
  return facts.probes >= kProbes || (facts.unacked > 0 && facts.window > 0);
}

}  // namespace

AckWatch::State AckWatch::Look(int fd, double seconds) {
  const auto facts = FactsOf(fd);
  return facts ? Judge(*facts, seconds) : State::kQuiet;  // a connection that has ended says so itself
}

AckWatch::State AckWatch::Judge(const Facts& facts, double seconds) {
  const bool heard = facts.heard_millis_ago < seconds * 1e3;
  silent_looks_ = AwaitsAnswer(facts) && !heard ? silent_looks_ + 1 : 0;
  if (silent_looks_ >= kLooks) return State::kSilent;
  return facts.unacked > 0 || facts.probes > 0 || facts.unsent > 0 ? State::kWaiting : State::kQuiet;
}

std::string AckWatch::Explain() {
  return "its host has acknowledged nothing for more than " + std::to_string(static_cast<int>(kLooks * kSeconds)) +
         " s";
}

}  // namespace tfc
