// What processes tell their peers about themselves.
#include <gtest/gtest.h>

#include "capi/session.h"

namespace tfc {
namespace {

TEST(PeerAddress, ComesBackWithTheProcessorsAndAnyNodeId) {
  auto meeting = Meeting::Create("127.0.0.1", "a;node; with;marks");
  ASSERT_TRUE(meeting.ok());
  const auto made = meeting.Take();
  auto parsed = PeerAddress::Parse(made->Address());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const PeerAddress address = parsed.Take();
  EXPECT_EQ(address.tcp.ToString(), made->tcp.address().ToString());
  EXPECT_EQ(address.fd_server, made->fds.name());
  EXPECT_TRUE(address.cpus == CpuSet::Usable());
  EXPECT_EQ(address.node_id, "a;node; with;marks");
}

TEST(PeerAddress, WhatIsNoneIsRefused) {
  for (const char* text : {"", "2", "1;127.0.0.1:80;name;1;node", "2;127.0.0.1:80;name;1", "2;nonsense;name;1;node",
                           "2;127.0.0.1:80;name;cpus;node"}) {
    EXPECT_EQ(PeerAddress::Parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace tfc
