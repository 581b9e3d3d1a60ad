#include "base/socket_address.h"

#include <gtest/gtest.h>

#include <string>

namespace tfc {
namespace {

TEST(SocketAddressTest, TextSurvivesTheRoundTrip) {
  for (const char* text : {"10.0.0.7:3412", "127.0.0.1:0", "255.255.255.255:65535", "[::1]:80", "[2001:db8::7]:3412"}) {
    const Result<SocketAddress> address = SocketAddress::Parse(text);
    ASSERT_TRUE(address.ok()) << address.status().message();
    EXPECT_EQ(address.value().ToString(), text);
  }
}

TEST(SocketAddressTest, TakesApart) {
  const SocketAddress v4 = SocketAddress::FromHost("10.0.0.7", 3412).Take();
  EXPECT_EQ(v4.host(), "10.0.0.7");
  EXPECT_EQ(v4.port(), 3412);
  EXPECT_EQ(v4.family(), AF_INET);
  const SocketAddress v6 = SocketAddress::FromHost("::1", 1).Take();
  EXPECT_EQ(v6.family(), AF_INET6);
  EXPECT_EQ(v6.host(), "::1");
  EXPECT_FALSE(SocketAddress().valid());
}

TEST(SocketAddressTest, RefusesWhatIsNotNumericAndSaysWhich) {
  for (const char* text :
       {"", ":", "10.0.0.7", "10.0.0.7:", "10.0.0.7:x", "10.0.0.7:65536", "10.0.0.7:-1", "10.0.0.7:1 ", "localhost:80",
        "example.org:80", "::1:80", "[::1]", "[]:80", "10.0.0.256:1", ":80"}) {
    const Result<SocketAddress> address = SocketAddress::Parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), Code::kInvalidArgument);
    EXPECT_NE(address.status().message().find("is no address"), std::string::npos) << address.status().message();
  }
}

}  // namespace
}  // namespace tfc
