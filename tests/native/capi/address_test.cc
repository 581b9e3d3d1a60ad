// What processes tell their peers about themselves.
#include <gtest/gtest.h>

#include "capi/communicator_impl.h"

namespace tfc {
namespace {

TEST(PeerAddress, ComesBackWithTheProcessorsAndAnyNodeId) {
  auto bundle = ListenerBundle::Create("127.0.0.1", "a;node; with;marks", PortRange());
  ASSERT_TRUE(bundle.ok());
  const auto made = bundle.Take();
  auto parsed = PeerAddress::Parse(made->Address());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const PeerAddress address = parsed.Take();
  EXPECT_EQ(address.tcp.ToString(), made->tcp.address().ToString());
  EXPECT_EQ(address.fd_server, made->fds.name());
  EXPECT_TRUE(address.cpus == CpuSet::Usable());
  EXPECT_EQ(address.node_id, "a;node; with;marks");
}

TEST(PeerAddress, WhatIsNoneIsRefused) {
  for (const char* text :
       {"", "3", "2;127.0.0.1:80;name;1;0@0;node", "3;127.0.0.1:80;name;1;0@0", "3;nonsense;name;1;0@0;node",
        "3;127.0.0.1:80;name;cpus;0@0;node", "3;127.0.0.1:80;name;1;quota;node"}) {
    EXPECT_EQ(PeerAddress::Parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

std::vector<PeerAddress> Ranks(std::initializer_list<const char*> cpus_and_quotas) {
  std::vector<PeerAddress> ranks;
  for (const std::string text : cpus_and_quotas)
    ranks.push_back(PeerAddress::Parse("3;127.0.0.1:80;name;" + text + ";node").Take());
  return ranks;
}

TEST(Crowded, AreMoreRanksThanProcessors) {
  EXPECT_FALSE(IsCrowded(Ranks({"3;0@0", "3;0@0"})));
  EXPECT_TRUE(IsCrowded(Ranks({"3;0@0", "3;0@0", "3;0@0"})));
  EXPECT_FALSE(IsCrowded(Ranks({"1;0@0", "2;0@0", "4;0@0"}))) << "pinned to one each";
}

TEST(Crowded, AreMoreRanksThanTheirControlGroupsAllow) {
  EXPECT_TRUE(IsCrowded(Ranks({"ff;1500@a", "ff;1500@a"}))) << "they share it";
  EXPECT_FALSE(IsCrowded(Ranks({"ff;2000@a", "ff;2000@a"})));
  EXPECT_FALSE(IsCrowded(Ranks({"ff;1000@a", "ff;1000@b"}))) << "a container for each";
  EXPECT_TRUE(IsCrowded(Ranks({"ff;500@a", "ff;1000@b"})));
  EXPECT_TRUE(IsCrowded(Ranks({"1;4000@a", "1;4000@a"}))) << "of one processor";
  EXPECT_FALSE(IsCrowded(Ranks({"ff;500@a", "ff;0@0"}))) << "one has no limit";
}

}  // namespace
}  // namespace tfc
