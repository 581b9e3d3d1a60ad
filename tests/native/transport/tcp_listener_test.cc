#include "collectives/transport/tcp/tcp_listener.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "testing/tcp_world.h"

namespace tfc {
namespace {

TEST(TcpListenerTest, TakesTheFirstFreePortOfTheRange) {
  // A port that was free a moment ago, and the next one: another process may take them, so the range is wide.
  const uint16_t low = TakeOrDie(TcpListener::Create("127.0.0.1")).address().port();
  const PortRange ports{low, static_cast<uint16_t>(low > 65000 ? 65535 : low + 400)};
  const TcpListener first = TakeOrDie(TcpListener::Create("127.0.0.1", ports));
  const TcpListener second = TakeOrDie(TcpListener::Create("127.0.0.1", ports));
  EXPECT_GE(first.address().port(), ports.low);
  EXPECT_LT(first.address().port(), second.address().port());
  EXPECT_LE(second.address().port(), ports.high);
}

TEST(TcpListenerTest, NamesTheRangeWhenAllItsPortsAreTaken) {
  const TcpListener taken = TakeOrDie(TcpListener::Create("127.0.0.1"));
  const uint16_t port = taken.address().port();
  const auto none = TcpListener::Create("127.0.0.1", PortRange{port, port});
  ASSERT_FALSE(none.ok());
  const std::string range = std::to_string(port) + "-" + std::to_string(port);
  EXPECT_NE(none.status().message().find("bind to 127.0.0.1, ports " + range + " (--port-range"), std::string::npos)
      << none.status().message();
}

}  // namespace
}  // namespace tfc
